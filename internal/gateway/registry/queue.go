package registry

import (
	"container/list"
	"time"
)

// queue is who waits for a worker of one model, those first that have waited longest.
type queue struct {
	places *list.List // of *Place
	// known tells whether the model was in the last picture.
	known bool
}

// Place is one request's among those that wait for a worker of its model. Of these one at a time is told to try, so that
// they are served in their order, and none of them looks when there is nothing for it.
type Place struct {
	registry *Registry
	model    string
	since    time.Time
	turn     chan struct{}
	element  *list.Element
}

// Wait takes a place for a request that has waited since then. The caller is to try once it has the place, if it is First,
// and whenever it is its Turn; and to Leave.
func (r *Registry) Wait(model string, since time.Time) *Place {
	r.mu.Lock()
	defer r.mu.Unlock()
	q := r.queues[model]
	if q == nil {
		q = &queue{places: list.New(), known: r.models[model] != nil}
		r.queues[model] = q
	}
	p := &Place{registry: r, model: model, since: since, turn: make(chan struct{}, 1)}
	before := q.places.Back()
	for before != nil && placeOf(before).since.After(since) {
		before = before.Prev()
	}
	if before == nil {
		p.element = q.places.PushFront(p)
	} else {
		p.element = q.places.InsertAfter(p, before)
	}
	return p
}

// Turn has something when the picture or a request's end may have made room.
func (p *Place) Turn() <-chan struct{} { return p.turn }

// First tells whether nobody has waited longer.
func (p *Place) First() bool {
	p.registry.mu.Lock()
	defer p.registry.mu.Unlock()
	return p.element.Prev() == nil
}

// Leave gives the place up, with a worker or without. The next one then tries: there may be room for more than one, and
// whoever leaves may have been told to try in vain. Only one call is allowed.
func (p *Place) Leave() {
	r := p.registry
	r.mu.Lock()
	defer r.mu.Unlock()
	q := r.queues[p.model]
	q.places.Remove(p.element)
	if q.places.Len() == 0 {
		delete(r.queues, p.model)
		return
	}
	q.next()
}

// next tells the first to try.
func (q *queue) next() {
	if first := q.places.Front(); first != nil {
		placeOf(first).try()
	}
}

func (p *Place) try() {
	select {
	case p.turn <- struct{}{}:
	default: // It is about to.
	}
}

func placeOf(e *list.Element) *Place {
	p, _ := e.Value.(*Place) // Nothing else is put in.
	return p
}

// pictured tells those who wait what a new picture may mean for them.
func (r *Registry) pictured() {
	for name, q := range r.queues {
		m := r.models[name]
		if known := m != nil; known != q.known {
			q.known = known
			for e := q.places.Front(); e != nil; e = e.Next() {
				placeOf(e).try()
			}
			continue
		}
		if m != nil && len(m.ready) > 0 {
			q.next()
		}
	}
}

// freed tells those who wait that a worker has room for one more.
func (r *Registry) freed(e *entry) {
	if len(r.queues) == 0 || !e.present {
		return
	}
	for name, state := range e.Models {
		if q := r.queues[name]; q != nil && state == Ready {
			q.next()
		}
	}
}
