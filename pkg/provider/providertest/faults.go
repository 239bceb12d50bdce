package providertest

import (
	"net/http"
	"net/http/httptest"
	"strconv"
	"sync"
)

// Faults puts the faults of Harness.Fail and Harness.Hang in front of a simulated cloud's HTTP API. Serve it from a
// real server: it cuts connections. It may be used concurrently.
type Faults struct {
	next    http.Handler
	opOf    func(*http.Request) Op
	answers map[Fault]Answer

	mu    sync.Mutex
	queue map[Op]*pending
	hang  map[Op]chan struct{}
}

type pending struct {
	how   Fault
	times int
}

// Answer answers a request that is to go wrong. perform has the cloud carry it out and returns what it would have
// answered; an Answer that does not call it has left the request undone.
type Answer func(w http.ResponseWriter, r *http.Request, perform func() *httptest.ResponseRecorder)

// NewFaults wraps next. opOf says which operation a request belongs to. answers are the vendor's own words: those of
// RateLimited, NoBalance, EchoKey and FailedWithInstance are required; the other faults look alike at every vendor,
// and an entry for one replaces that.
func NewFaults(next http.Handler, opOf func(*http.Request) Op, answers map[Fault]Answer) *Faults {
	return &Faults{next: next, opOf: opOf, answers: answers, queue: map[Op]*pending{}, hang: map[Op]chan struct{}{}}
}

// Fail is Harness.Fail.
func (f *Faults) Fail(op Op, how Fault, times int) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.queue[op] = &pending{how, times}
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
		p.times--
		return p.how, nil
	}
	return "", nil
}

// ServeHTTP serves the cloud, but for the faults.
func (f *Faults) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	how, arrived := f.take(f.opOf(r))
	perform := func() *httptest.ResponseRecorder {
		rec := httptest.NewRecorder()
		f.next.ServeHTTP(rec, r)
		return rec
	}
	switch {
	case arrived != nil:
		perform()
		close(arrived)
		<-r.Context().Done()
	case how == "":
		f.next.ServeHTTP(w, r)
	case f.answers[how] != nil:
		f.answers[how](w, r, perform)
	default:
		commonAnswer(w, how, perform)
	}
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
	case RateLimited, NoBalance, EchoKey, FailedWithInstance:
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
