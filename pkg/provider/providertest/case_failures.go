package providertest

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync"
	"time"

	"github.com/munhq/gpuscale/pkg/provider"
)

func failureCases() []Case {
	return []Case{
		{Name: "LostAnswerDrill", Check: lostAnswer},
		{Name: "LostAnswerOfADestroy", Check: lostDestroy},
		{Name: "ABadKeyIsUnauthorizedEverywhere", Check: badKey},
		{Name: "ABadKeyThatLooksLikeNotFound", Check: badKeyAsNotFound},
		{Name: "RateLimitedSaysHowLong", Check: rateLimited},
		{Name: "RetryAfterIsPassedOn", Check: retryAfter},
		{Name: "AnAnswerThatIsTooSlow", Check: tooSlow},
		{Name: "AServerErrorConcludesNothing", Check: serverError},
		{Name: "HalfAnAnswerIsNoAnswer", Check: halfAnswer},
		{Name: "CancelledInTheMiddleOfACreate", Check: cancelledMidCreate},
		{Name: "CancelledBeforehand", Check: cancelledBefore},
		{Name: "NoErrorShowsACredential", Check: noCredentials},
	}
}

func generalCases() []Case {
	return []Case{
		{Name: "CapabilitiesAreComplete", Check: capabilitiesComplete},
		{Name: "GoodCredentialsPass", Check: goodCredentials},
		{Name: "AnAccountIsToldFromAnother", Check: accounts},
		{Name: "CallsInParallel", Check: parallel, Concurrent: true},
	}
}

// asError is the provider.Error in err, nil if there is none.
func asError(err error) *provider.Error {
	var e *provider.Error
	if errors.As(err, &e) {
		return e
	}
	return nil
}

// lostAnswer is what a controller does when it does not know whether it bought.
func lostAnswer(t T, h Harness) {
	for i, kind := range capacityTypes(h.Driver().Capabilities()) {
		h.AddOffers(2)
		o := search(t, h, kind, 1)[0]
		h.Fail(Create, LostAnswer, 1)
		_, err := h.Driver().CreateInstance(t.Context(), request(h, o, tag(i)))
		wantOpen(t, h, Create, err)
		h.Wait(h.Driver().Capabilities().ListLag)
		found := list(t, h, provider.InstanceFilter{Tag: tag(i)})
		if len(found) != 1 {
			t.Fatalf("%s: the look-up by tag found %d instances; want 1", kind, len(found))
		}
		bought := wantLive(t, h, i+1)
		if last := bought[len(bought)-1]; last.Tag != tag(i) || last.ID != found[0].ID {
			t.Errorf("%s: the books have %+v, the look-up found %s", kind, last, found[0].ID)
		}
	}
}

func lostDestroy(t T, h Harness) {
	id, _ := scene(t, h)
	h.Fail(Destroy, LostAnswer, 1)
	err := h.Driver().DestroyInstance(t.Context(), id)
	wantKind(t, h, Destroy, err, provider.Unknown, provider.Unavailable)
	if err := h.Driver().DestroyInstance(t.Context(), id); err != nil {
		wantKind(t, h, Destroy, err, provider.NotFound)
	}
	wantLive(t, h, 0)
}

func badKey(t T, h Harness) {
	id, spare := scene(t, h)
	for _, op := range Ops() {
		for _, on := range []string{id, h.UnusedID()} {
			err := do(t.Context(), h, h.BadKeyDriver(), op, on, spare)
			if op == Search && err == nil {
				continue // a public price list proves nothing, and need not
			}
			wantKind(t, h, op, err, provider.Unauthorized)
			if err != nil {
				wantSilent(t, h, err)
			}
		}
	}
	if r := wantLive(t, h, 1)[0]; r.ID != id {
		t.Errorf("a bad key changed what is rented: %+v", r)
	}
}

// badKeyAsNotFound: with a key that opens nothing, nothing is known to be gone.
func badKeyAsNotFound(t T, h Harness) {
	id, spare := scene(t, h)
	show(t, h, BadKeyAsNotFound, "")
	for _, op := range []Op{Create, Get, List, Destroy, Check} {
		for _, on := range []string{id, h.UnusedID()} {
			wantKind(t, h, op, do(t.Context(), h, h.BadKeyDriver(), op, on, spare), provider.Unauthorized)
		}
	}
	_, err := h.Driver().GetInstance(t.Context(), h.UnusedID())
	wantKind(t, h, Get, err, provider.NotFound)
	wantLive(t, h, 1)
}

// retryAfter: the vendor's own word on how long to wait reaches who waits.
func retryAfter(t T, h Harness) {
	id, spare := scene(t, h)
	for _, op := range Ops() {
		h.Fail(op, RateLimitedFor, 1)
		err := do(t.Context(), h, h.Driver(), op, id, spare)
		wantKind(t, h, op, err, provider.RateLimited)
		if e := asError(err); e != nil && e.RetryAfter < RetryAfter {
			t.Errorf("%s: told to wait %s, passed on %s", op, RetryAfter, e.RetryAfter)
		}
	}
	wantLive(t, h, 1)
}

// patience is how long a case waits for what must not take for ever.
const patience = 20 * time.Second

// tooSlow: a driver gives up on an answer by itself, claims nothing about a write whose answer did not come, and does
// not send it again.
func tooSlow(t T, h Harness) {
	impatient, ok := h.(ImpatientHarness)
	if !ok {
		t.Fatalf("the harness is no ImpatientHarness")
	}
	id, spare := scene(t, h)
	d := impatient.ImpatientDriver()
	for _, op := range Ops() {
		arrived := h.Hang(op)
		ctx, cancel := context.WithTimeout(t.Context(), patience)
		err := do(ctx, h, d, op, id, spare)
		if ctx.Err() != nil {
			t.Errorf("%s: still waiting after %s", op, patience)
		}
		cancel()
		select {
		case <-arrived:
		default:
			t.Errorf("%s was not sent (%v)", op, err)
		}
		switch {
		case op.writes():
			wantOpen(t, h, op, err)
		case err != nil: // a read may be repeated, and then have its answer
			wantKind(t, h, op, err, provider.Unavailable, provider.Unknown)
		}
	}
	h.Wait(h.Driver().Capabilities().ListLag)
	bought := wantLive(t, h, 1)[0]
	if found := list(t, h, provider.InstanceFilter{}); len(found) != 1 || found[0].ID != bought.ID || bought.ID == id {
		t.Errorf("the books have %+v and the list %+v; want what was created and not what was destroyed", bought, found)
	}
}

func rateLimited(t T, h Harness) {
	id, spare := scene(t, h)
	for _, op := range Ops() {
		h.Fail(op, RateLimited, 1)
		err := do(t.Context(), h, h.Driver(), op, id, spare)
		wantKind(t, h, op, err, provider.RateLimited)
		if e := asError(err); e != nil && e.RetryAfter <= 0 {
			t.Errorf("%s: rate limited for %s; want how long to wait", op, e.RetryAfter)
		}
	}
	wantLive(t, h, 1)
}

func serverError(t T, h Harness) {
	for _, how := range []Fault{ServerError, Overloaded} {
		id, spare := scene(t, h)
		for _, op := range Ops() {
			h.Fail(op, how, 10) // more than any driver retries
			err := do(t.Context(), h, h.Driver(), op, id, spare)
			h.Fail(op, how, 0)
			wantOpen(t, h, op, err)
		}
		if err := h.Driver().DestroyInstance(t.Context(), id); err != nil {
			t.Fatalf("destroy once the fault is over: %v", err)
		}
		wantLive(t, h, 0)
	}
}

func halfAnswer(t T, h Harness) {
	for _, how := range []Fault{Truncated, NotJSON} {
		id, spare := scene(t, h)
		for _, op := range Ops() {
			h.Fail(op, how, 1)
			err := do(t.Context(), h, h.Driver(), op, id, spare)
			h.Fail(op, how, 0)
			wantKind(t, h, op, err, provider.Unknown)
		}
		// Create and destroy took effect: one was bought and the other ended.
		r := wantLive(t, h, 1)[0]
		if r.ID == id {
			t.Errorf("%s: the instance to destroy is still there and the new one is not", how)
		}
		if err := h.Driver().DestroyInstance(t.Context(), r.ID); err != nil {
			t.Fatalf("destroy: %v", err)
		}
	}
}

func cancelledMidCreate(t T, h Harness) {
	h.AddOffers(2)
	o := search(t, h, anyType(h), 1)[0]
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	arrived := h.Hang(Create)
	result := make(chan error, 1)
	go func() {
		_, err := h.Driver().CreateInstance(ctx, request(h, o, tag(1)))
		result <- err
	}()
	select {
	case <-arrived:
	case err := <-result:
		t.Fatalf("the create returned %v before it was cancelled", err)
	}
	cancel()
	err := <-result
	wantKind(t, h, Create, err, provider.Unknown)
	if provider.Refused(err) || !errors.Is(err, context.Canceled) {
		t.Errorf("%v; want the context's error, and nothing claimed about what was rented", err)
	}
	h.Wait(h.Driver().Capabilities().ListLag)
	if found := list(t, h, provider.InstanceFilter{Tag: tag(1)}); len(found) != 1 {
		t.Errorf("the look-up by tag found %d instances; want 1", len(found))
	}
}

func cancelledBefore(t T, h Harness) {
	id, spare := scene(t, h)
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	for _, op := range Ops() {
		want := provider.Unavailable
		if op.writes() {
			want = provider.Unknown
		}
		wantKind(t, h, op, do(ctx, h, h.Driver(), op, id, spare), want)
	}
}

func noCredentials(t T, h Harness) {
	id, spare := scene(t, h)
	for _, op := range Ops() {
		for _, how := range []Fault{EchoKey, LostAnswer, NotJSON} {
			h.Fail(op, how, 1)
			if err := do(t.Context(), h, h.Driver(), op, id, spare); err != nil {
				wantSilent(t, h, err)
			} else if how == EchoKey {
				t.Errorf("%s succeeded on a refusal", op)
			}
			h.Fail(op, how, 0)
		}
	}
	for _, d := range []provider.Provider{h.Driver(), h.BadKeyDriver()} {
		for _, s := range []string{fmt.Sprintf("%+v", d), fmt.Sprintf("%#v", d)} {
			for _, secret := range h.Secrets() {
				if strings.Contains(s, secret) {
					t.Errorf("printing the driver shows a credential")
				}
			}
		}
	}
}

func capabilitiesComplete(t T, h Harness) {
	c := h.Driver().Capabilities()
	if c != h.Driver().Capabilities() {
		t.Errorf("the capabilities change")
	}
	if !c.Spot && !c.OnDemand {
		t.Errorf("neither spot nor on-demand can be bought")
	}
	if c.Boot != provider.BootContainer && c.Boot != provider.BootVM {
		t.Errorf("boot kind %q", c.Boot)
	}
	if c.SelfEnd != provider.SelfEndFull && c.SelfEnd != provider.SelfEndCompute && c.SelfEnd != provider.SelfEndNone {
		t.Errorf("self-end %q", c.SelfEnd)
	}
	if (c.SelfEnd == provider.SelfEndNone) != (c.SelfEndBy == "") {
		t.Errorf("self-end %q by %q", c.SelfEnd, c.SelfEndBy)
	}
	if c.ListLag <= 0 || c.CreateTimeout <= 0 || c.MinPollInterval <= 0 || c.SearchInterval <= 0 || c.BootDataLimit <= 0 {
		t.Errorf("a figure is missing in %+v", c)
	}
	if h.Driver().Name() == "" {
		t.Errorf("the provider has no name")
	}
}

func goodCredentials(t T, h Harness) {
	if err := h.Driver().CheckCredentials(t.Context()); err != nil {
		t.Errorf("good credentials: %v", err)
	}
}

// accounts: who knows an account by its identity believes what its keys say of its instances, and no other's.
func accounts(t T, h Harness) {
	if _, ok := provider.IdentifiedOf(h.Driver()); !ok {
		t.Skipf("the driver tells no account, and nobody takes it for told")
	}
	a, ok := h.(AccountHarness)
	if !ok {
		t.Fatalf("the driver is Identified and the harness no AccountHarness")
	}
	mine := accountID(t, h.Driver())
	if mine == "" {
		t.Fatalf("the account of good credentials is not told")
	}
	if again := accountID(t, h.Driver()); again != mine {
		t.Errorf("the account was %q and is %q", mine, again)
	}
	if rotated := accountID(t, a.RotatedDriver()); rotated != mine {
		t.Errorf("another key of account %q is told as %q", mine, rotated)
	}
	if other := accountID(t, a.OtherDriver()); other == mine || other == "" {
		t.Errorf("the key of another account is told as %q, as is this account's %q", other, mine)
	}
	_, err := mustIdentify(h.BadKeyDriver()).AccountID(t.Context())
	wantKind(t, h, Check, err, provider.Unauthorized)
	h.Fail(Check, NotJSON, 1)
	if id, err := mustIdentify(h.Driver()).AccountID(t.Context()); err == nil {
		t.Errorf("half an answer told the account as %q", id)
	}
	id, _ := scene(t, h)
	get(t, h, id)
	_, err = a.RotatedDriver().GetInstance(t.Context(), id)
	if err != nil {
		t.Errorf("another key of the account: %v", err)
	}
	_, err = a.OtherDriver().GetInstance(t.Context(), id)
	wantKind(t, h, Get, err, provider.NotFound)
}

func mustIdentify(d provider.Provider) provider.Identified {
	i, _ := provider.IdentifiedOf(d)
	return i
}

func accountID(t T, d provider.Provider) string {
	t.Helper()
	id, err := mustIdentify(d).AccountID(t.Context())
	if err != nil {
		t.Fatalf("account: %v", err)
	}
	return id
}

func parallel(t T, h Harness) {
	id, spare := scene(t, h)
	d := h.Driver()
	const callers = 4
	var group sync.WaitGroup
	failures := make(chan error, callers*len(Ops()))
	for range callers {
		for _, op := range []Op{Search, Get, List, Check} {
			group.Go(func() {
				if err := do(t.Context(), h, d, op, id, spare); err != nil {
					failures <- fmt.Errorf("%s: %w", op, err)
				}
			})
		}
	}
	group.Go(func() {
		if err := do(t.Context(), h, d, Create, id, spare); err != nil {
			failures <- fmt.Errorf("create: %w", err)
		}
	})
	group.Wait()
	close(failures)
	for err := range failures {
		t.Errorf("in parallel: %v", err)
	}
	wantLive(t, h, 2)
}
