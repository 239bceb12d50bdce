// Package providertest is the contract suite: what a driver must do to be one. A driver's test makes a Harness around
// the cloud that its driver talks to (as a rule a simulated one, in the vendor's wire format) and calls Run.
//
// The suite owns every assertion; the harness only arranges things at the cloud and reads the cloud's own books, never
// the driver's words. Cases are left out by declared capabilities only. Each case is one function over T, so that the
// suite's own tests can run it against drivers broken on purpose and see it fail.
package providertest

import (
	"context"
	"fmt"
	"runtime"
	"slices"
	"testing"
	"time"

	"github.com/munhq/gpuscale/pkg/money"
	"github.com/munhq/gpuscale/pkg/provider"
)

// Harness is one account at one cloud with nothing rented, and hands on its controls. Methods other than Driver and
// BadKeyDriver act on the cloud, not on the driver, and fail the test where they cannot do what they say.
//
// The cloud shows a new instance as late as the driver declares (Capabilities.ListLag), so that every case lives with
// the lag, and it holds the driver to its rate limits unless the case is Concurrent. Where the vendor pages its lists, a
// page has 25 rows at the most. Every harness is a QuirkHarness and an ImpatientHarness too.
type Harness interface {
	// Driver returns the driver of the account. Its time is the harness's (see Wait).
	Driver() provider.Provider
	// BadKeyDriver returns a driver with credentials that the cloud does not know.
	BadKeyDriver() provider.Provider
	// Secrets are the credentials of both drivers.
	Secrets() []string

	// AddOffers makes at least n offers of every capacity type that the driver declares, each rentable once at the
	// least.
	AddOffers(n int)
	// TakeOffer rents the offer to somebody else.
	TakeOffer(id string)
	// UnusedID is an instance id of the right form that no instance has or will have.
	UnusedID() string

	// Start makes an instance running and reachable.
	Start(id string)
	// Reclaim has the provider take a spot instance back, leaving it listed or not as that provider does.
	Reclaim(id string)
	// Stop stops an instance the way its owner would in the vendor's console.
	Stop(id string)
	// Exit ends the instance's software by itself.
	Exit(id string)
	// SayUnknownState has the cloud report a state in a word that no document lists.
	SayUnknownState(id string)

	// Fail makes the next times requests of an operation go wrong, instead of any that were to. Retries of the driver
	// count; 0 ends the fault.
	Fail(op Op, how Fault, times int)
	// Hang makes the next request of an operation take effect and get no answer as long as the client waits. The
	// channel closes when it has taken effect.
	Hang(op Op) (arrived <-chan struct{})

	// Books are all instances ever rented, as the cloud would bill them.
	Books() []Record
	// Wait lets d pass for the cloud and the driver.
	Wait(d time.Duration)
}

// AccountHarness is a Harness of a driver that is provider.Identified.
type AccountHarness interface {
	Harness
	// RotatedDriver has another key of Driver's account, and OtherDriver a key of another account.
	RotatedDriver() provider.Provider
	OtherDriver() provider.Provider
}

// Record is one line of the cloud's books.
type Record struct {
	ID   string
	Tag  string
	Spot bool
	// PerHour is everything billed by the hour while it runs, rounded up to the micro-dollar.
	PerHour money.Dollars
	// Live: it has not been destroyed.
	Live bool
	// Port is where Boot.Port is reached from outside while it runs; 0 where the harness does not know.
	Port int
}

// Op is an operation of provider.Provider, as provider.Error.Op spells it.
type Op string

// The operations.
const (
	Search  Op = "search"
	Create  Op = "create"
	Get     Op = "get"
	List    Op = "list"
	Destroy Op = "destroy"
	Check   Op = "check"
)

// Ops lists the operations.
func Ops() []Op { return []Op{Search, Create, Get, List, Destroy, Check} }

// writes are the operations that change something at the provider.
func (o Op) writes() bool { return o == Create || o == Destroy }

// Fault is how a request goes wrong.
type Fault string

// The faults. Unless said otherwise nothing takes effect.
const (
	// RateLimited: the vendor's answer to asking too often.
	RateLimited Fault = "rate limited"
	// ServerError: status 500.
	ServerError Fault = "server error"
	// Overloaded: status 503.
	Overloaded Fault = "overloaded"
	// LostAnswer: the request takes effect and the connection breaks before the answer.
	LostAnswer Fault = "lost answer"
	// Truncated: the request takes effect and the answer ends in the middle, looking complete to HTTP.
	Truncated Fault = "truncated"
	// NotJSON: the request takes effect and is answered 200 with a page of HTML.
	NotJSON Fault = "not JSON"
	// NoBalance: the vendor's answer when the account cannot pay.
	NoBalance Fault = "no balance"
	// EchoKey: a 400 that repeats the caller's credentials.
	EchoKey Fault = "echo key"
	// FailedWithInstance: a create that rents and answers with an error that names the instance.
	FailedWithInstance Fault = "failed with instance"
	// SuccessInError: the request takes effect and is answered with what a success says, under an error's status.
	SuccessInError Fault = "success in an error"
	// FailureIn200: the vendor's failure under status 200. Asked for with the quirk Fails200.
	FailureIn200 Fault = "failure in a 200"
	// RateLimitedFor: RateLimited, with a Retry-After of RetryAfter.
	RateLimitedFor Fault = "rate limited for a time"
)

// RetryAfter is what a RateLimitedFor says in its header: longer than any driver waits by itself.
const RetryAfter = 47 * time.Second

// T is what a case needs of *testing.T.
type T interface {
	Helper()
	Logf(format string, args ...any)
	Errorf(format string, args ...any)
	Fatalf(format string, args ...any)
	Skipf(format string, args ...any)
	Failed() bool
	Cleanup(f func())
	Context() context.Context
}

// Case is one promise of provider.Provider.
type Case struct {
	Name string
	// Needs reports whether a driver with these capabilities makes the promise; nil means every driver does.
	Needs func(provider.Capabilities) bool
	// Concurrent: the case's calls overlap, so that a harness that steps its time cannot tell which came first.
	Concurrent bool
	// Check tries the promise on a fresh harness.
	Check func(t T, h Harness)
}

// Cases lists the suite in the order of the provider's life: search, create, reads, states, end, failures.
func Cases() []Case {
	return slices.Concat(searchCases(), createCases(), readCases(), stateCases(), endCases(), failureCases(), quirkCases(),
		generalCases())
}

// NewHarness makes the harness of one case.
type NewHarness func(T, Case) Harness

// Run runs the suite. newHarness is called once per case, so that cases cannot lean on each other.
func Run(t *testing.T, newHarness NewHarness) {
	for _, c := range Cases() {
		t.Run(c.Name, func(t *testing.T) {
			h := newHarness(t, c)
			if c.Needs != nil && !c.Needs(h.Driver().Capabilities()) {
				t.Skip("the driver does not declare the power that this case is about")
			}
			c.Check(t, h)
		})
	}
}

// Try runs one case and returns what it complained of, nil if the driver passed. It is how a test shows that a case
// catches what it is there to catch.
func Try(ctx context.Context, c Case, newHarness NewHarness) []string {
	return Attempt(ctx, func(t T) { c.Check(t, newHarness(t, c)) })
}

// Attempt runs f, and what f had for its end, and returns what f complained of. A panic is a complaint.
func Attempt(ctx context.Context, f func(T)) []string { return attempt(ctx, f).complaints }

func attempt(ctx context.Context, f func(T)) *recorder {
	ctx, cancel := context.WithCancel(ctx)
	r := &recorder{ctx: ctx}
	done := make(chan struct{})
	go func() {
		defer close(done)
		defer func() {
			if p := recover(); p != nil {
				r.Errorf("panic: %v", p)
			}
		}()
		f(r)
	}()
	<-done
	cancel()
	for _, f := range slices.Backward(r.cleanups) {
		f()
	}
	return r
}

// recorder is a T that keeps what it is told. A case uses it from one goroutine.
type recorder struct {
	ctx        context.Context
	complaints []string
	cleanups   []func()
	skipped    bool
}

// Helper does nothing: complaints carry no line.
func (r *recorder) Helper() {}

// Logf drops what a passing case says.
func (r *recorder) Logf(string, ...any) {}

// Failed reports whether there is a complaint.
func (r *recorder) Failed() bool { return len(r.complaints) > 0 }

// Cleanup has f called when the case is over, last first.
func (r *recorder) Cleanup(f func()) { r.cleanups = append(r.cleanups, f) }

// Context ends with the case.
func (r *recorder) Context() context.Context { return r.ctx }

// Errorf keeps a complaint.
func (r *recorder) Errorf(format string, args ...any) {
	r.complaints = append(r.complaints, fmt.Sprintf(format, args...))
}

// Skipf ends the case's goroutine.
func (r *recorder) Skipf(string, ...any) {
	r.skipped = true
	runtime.Goexit()
}

// Fatalf keeps a complaint and ends the case's goroutine.
func (r *recorder) Fatalf(format string, args ...any) {
	r.Errorf(format, args...)
	runtime.Goexit()
}
