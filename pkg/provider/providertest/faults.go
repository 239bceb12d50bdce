package providertest

import (
	"bytes"
	"encoding/json"
	"net/http"
	"net/http/httptest"
	"slices"
	"strconv"
	"sync"
)

// Faults puts the faults of Harness.Fail and Harness.Hang in front of a simulated cloud's HTTP API. Serve it from a
// real server: it cuts connections. It may be used concurrently.
type Faults struct {
	next    http.Handler
	opOf    func(*http.Request) Op
	answers map[Fault]Answer

	mu       sync.Mutex
	queue    map[Op]*pending
	hang     map[Op]chan struct{}
	rewrites map[Op][]func(any) any
}

type pending struct {
	how         Fault
	skip, times int
}

// Answer answers a request that is to go wrong. perform has the cloud carry it out and returns what it would have
// answered; an Answer that does not call it has left the request undone.
type Answer func(w http.ResponseWriter, r *http.Request, perform func() *httptest.ResponseRecorder)

// NewFaults wraps next. opOf says which operation a request belongs to. answers are the vendor's own words: those of
// RateLimited, NoBalance, EchoKey and FailedWithInstance are required, and that of FailureIn200 where the vendor has
// such; the other faults look alike at every vendor, and an entry for one replaces that.
func NewFaults(next http.Handler, opOf func(*http.Request) Op, answers map[Fault]Answer) *Faults {
	return &Faults{next: next, opOf: opOf, answers: answers, queue: map[Op]*pending{}, hang: map[Op]chan struct{}{},
		rewrites: map[Op][]func(any) any{}}
}

// Fail is Harness.Fail.
func (f *Faults) Fail(op Op, how Fault, times int) { f.FailAfter(op, 0, how, times) }

// FailAfter is Fail for requests after the next skip ones, such as the second page of a list.
func (f *Faults) FailAfter(op Op, skip int, how Fault, times int) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.queue[op] = &pending{how, skip, times}
}

// Rewrite changes every answer to an operation from now on that is JSON under a 2xx status: change gets the document
// as encoding/json decodes it, but with numbers as json.Number, and returns what is sent. Several apply in order.
func (f *Faults) Rewrite(op Op, change func(doc any) any) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.rewrites[op] = append(f.rewrites[op], change)
}

// Hang is Harness.Hang.
func (f *Faults) Hang(op Op) <-chan struct{} {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.hang[op] = make(chan struct{})
	return f.hang[op]
}

// take removes what is to go wrong with the next request of op.
func (f *Faults) take(op Op) (how Fault, arrived chan struct{}) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if arrived = f.hang[op]; arrived != nil {
		delete(f.hang, op)
		return "", arrived
	}
	if p := f.queue[op]; p != nil && p.times > 0 {
		if p.skip > 0 {
			p.skip--
			return "", nil
		}
		p.times--
		return p.how, nil
	}
	return "", nil
}

// ServeHTTP serves the cloud, but for the faults.
func (f *Faults) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	op := f.opOf(r)
	how, arrived := f.take(op)
	perform := func() *httptest.ResponseRecorder {
		rec := httptest.NewRecorder()
		f.next.ServeHTTP(rec, r)
		return rec
	}
	if how == RateLimitedFor {
		w.Header().Set("Retry-After", strconv.Itoa(int(RetryAfter.Seconds())))
		how = RateLimited
	}
	switch {
	case arrived != nil:
		perform()
		close(arrived)
		<-r.Context().Done()
	case how == "":
		f.serve(w, r, op, perform)
	case f.answers[how] != nil:
		f.answers[how](w, r, perform)
	default:
		commonAnswer(w, how, perform)
	}
}

// serve answers as the cloud does, but for rewrites.
func (f *Faults) serve(w http.ResponseWriter, r *http.Request, op Op, perform func() *httptest.ResponseRecorder) {
	f.mu.Lock()
	changes := slices.Clone(f.rewrites[op])
	f.mu.Unlock()
	if len(changes) == 0 {
		f.next.ServeHTTP(w, r)
		return
	}
	rec := perform()
	body := rec.Body.Bytes()
	if rec.Code/100 == 2 {
		body = rewritten(body, changes)
	}
	for name, values := range rec.Header() {
		if name != "Content-Length" {
			w.Header()[name] = values
		}
	}
	w.WriteHeader(rec.Code)
	_, _ = w.Write(body) // a client that has left is its own affair
}

// rewritten is the document after all changes, or body where it is no JSON.
func rewritten(body []byte, changes []func(any) any) []byte {
	var doc any
	in := json.NewDecoder(bytes.NewReader(body))
	in.UseNumber()
	if in.Decode(&doc) != nil {
		return body
	}
	for _, change := range changes {
		doc = change(doc)
	}
	out, err := json.Marshal(doc)
	if err != nil {
		panic("providertest: a rewrite made no JSON: " + err.Error())
	}
	return out
}

func commonAnswer(w http.ResponseWriter, how Fault, perform func() *httptest.ResponseRecorder) {
	switch how {
	case ServerError:
		page(w, http.StatusInternalServerError)
	case Overloaded:
		page(w, http.StatusServiceUnavailable)
	case LostAnswer:
		perform()
		panic(http.ErrAbortHandler)
	case Truncated:
		rec := perform()
		half := rec.Body.Bytes()[:rec.Body.Len()/2]
		w.Header().Set("Content-Type", rec.Header().Get("Content-Type"))
		w.Header().Set("Content-Length", strconv.Itoa(len(half)))
		w.WriteHeader(rec.Code)
		_, _ = w.Write(half) // a client that has left is its own affair
	case NotJSON:
		perform()
		page(w, http.StatusOK)
	case SuccessInError:
		rec := perform()
		w.Header().Set("Content-Type", rec.Header().Get("Content-Type"))
		w.WriteHeader(http.StatusInternalServerError)
		_, _ = w.Write(rec.Body.Bytes()) // a client that has left is its own affair
	case RateLimited, NoBalance, EchoKey, FailedWithInstance, FailureIn200, RateLimitedFor:
		panic("providertest: no Answer for " + string(how))
	default:
		panic("providertest: unknown fault " + string(how))
	}
}

// page is what proxies put in front of an API answer.
func page(w http.ResponseWriter, status int) {
	w.Header().Set("Content-Type", "text/html")
	w.WriteHeader(status)
	_, _ = w.Write([]byte("<html><body><h1>" + http.StatusText(status) + "</h1></body></html>"))
}
