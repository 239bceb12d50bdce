package providertest

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/munhq/gpuscale/pkg/money"
	"github.com/munhq/gpuscale/pkg/provider"
	"github.com/munhq/gpuscale/pkg/provider/rest"
)

// What a live run is held to.
const (
	// LiveTagPrefix is on whatever a live run rents. No installation has that name.
	LiveTagPrefix = "gs-livetest-"
	// LiveRental is the longest that an instance is kept, LiveCleanUp the longest that its end is waited for.
	LiveRental  = 4 * time.Minute
	LiveCleanUp = 2 * time.Minute
	// liveAttempts is how many offers are tried that turn out to be gone.
	liveAttempts = 5
	// liveTrafficMB is ten times what the image of a live run weighs.
	liveTrafficMB = 50
)

// LiveBudget is what a live run of one provider may cost at the most, unless told otherwise.
func LiveBudget() money.Amount { return money.AmountFromMicros(50_000) }

// LiveTakes is the longest from the decision to rent until what was rented is given up on: the rental and, twice, its end.
func LiveTakes(c provider.Capabilities) time.Duration {
	return LiveRental + c.CreateTimeout + 2*LiveCleanUp
}

// Live is one real account, or a simulated one that is treated as real.
type Live struct {
	Driver provider.Provider
	// BadKey has credentials that are like the driver's and wrong.
	BadKey provider.Provider
	// Budget is what the run may cost: no rental begins that could cost more with those before it.
	Budget money.Amount
	// Clock is what is waited by; nil means the system's.
	Clock rest.Clock
	// End is when the process ends, whatever it has rented; zero means never. Nothing is rented within LiveTakes of it.
	End time.Time
}

// liveRun is one run.
type liveRun struct {
	Live
	t         T
	caps      provider.Capabilities
	tag       string
	committed money.Amount
	ids       []string
	// unclear: a create was sent of which it is not known what became.
	unclear bool
}

// RunLive tries the promises of provider.Provider that an account can be asked for without arranging anything: one
// rental of the cheapest offer, of LiveRental at the most, and reads around it. It refuses to rent where the price, the
// time and the vendor's least billing could come to more than the budget.
//
// It ends everything that carries LiveTagPrefix, left by an earlier run too, before it begins and when it is over,
// however that comes, and reports what it could not end. So two runs of one account at a time are one too many.
func RunLive(t T, l Live) {
	t.Helper()
	if l.Clock == nil {
		l.Clock = rest.System
	}
	r := &liveRun{Live: l, t: t, caps: l.Driver.Capabilities(), tag: LiveTagPrefix + fmt.Sprintf("%016x", l.Clock.Now().UnixNano())}
	if err := l.Driver.CheckCredentials(t.Context()); err != nil {
		t.Fatalf("credentials: %v", err)
	}
	t.Cleanup(func() { r.cleanUp(r.patience()) })
	r.cleanUp(LiveCleanUp) // what an earlier run left
	r.reads()
	offers := r.offers()
	if t.Failed() {
		t.Fatalf("nothing is rented with a driver that is wrong already")
	}
	if takes := LiveTakes(r.caps); !l.End.IsZero() && l.End.Before(l.Clock.Now().Add(takes)) {
		t.Fatalf("nothing is rented: it may take %s and go test is killed in %s: use -timeout %s", takes,
			l.End.Sub(l.Clock.Now()), 2*takes)
	}
	inst, offer := r.rent(offers)
	ctx, cancel := context.WithTimeout(t.Context(), LiveRental)
	defer cancel()
	r.listed(ctx, inst, offer)
	r.runs(ctx, inst.ID)
	r.ends(inst.ID)
}

// reads are what costs nothing.
func (r *liveRun) reads() {
	r.t.Helper()
	h := liveHarness{driver: r.Driver}
	capabilitiesComplete(r.t, h)
	for _, kind := range []provider.CapacityType{provider.Spot, provider.OnDemand} {
		if slices.Contains(capacityTypes(r.caps), kind) {
			continue
		}
		_, err := r.Driver.SearchOffers(r.t.Context(), provider.OfferQuery{CapacityType: kind, DiskGB: liveDiskGB})
		wantKind(r.t, h, Search, err, provider.Unsupported)
	}
	if found, err := r.Driver.ListInstances(r.t.Context(), provider.InstanceFilter{Tag: r.tag}); err != nil || len(found) != 0 {
		r.t.Errorf("list by a tag that nothing carries: %v, %v", found, err)
	}
	if r.BadKey == nil {
		return
	}
	wantKind(r.t, h, Check, r.BadKey.CheckCredentials(r.t.Context()), provider.Unauthorized)
	_, err := r.BadKey.ListInstances(r.t.Context(), provider.InstanceFilter{})
	wantKind(r.t, h, List, err, provider.Unauthorized)
}

// liveDiskGB is the disk of a live run; a driver raises it to the vendor's least.
const liveDiskGB = 10

// offers are all, cheapest first.
func (r *liveRun) offers() []provider.Offer {
	r.t.Helper()
	var all []provider.Offer
	for _, kind := range capacityTypes(r.caps) {
		found, err := r.Driver.SearchOffers(r.t.Context(), provider.OfferQuery{CapacityType: kind, DiskGB: liveDiskGB})
		if err != nil {
			r.t.Fatalf("search for %s: %v", kind, err)
		}
		for _, o := range found {
			if o.ID == "" || o.CapacityType != kind || o.Price.Micros() <= 0 || o.DiskGB < liveDiskGB || len(o.RestKeys) == 0 {
				r.t.Errorf("an offer that says too little: %+v", o)
				continue
			}
			all = append(all, o)
		}
	}
	slices.SortStableFunc(all, func(a, b provider.Offer) int { return a.Price.Cmp(b.Price) })
	return all
}

// bound is what one rental may cost at the most: the time until its end is confirmed, or the vendor's least where that is
// longer, in the vendor's steps, at the offer's price, and the traffic of its image.
func (r *liveRun) bound(o provider.Offer) money.Amount {
	billed := max(LiveTakes(r.caps), r.caps.MinimumBilling)
	if step := r.caps.BillingGranularity; step > 0 {
		billed += step - 1
		billed -= billed % step
	}
	const nano = int64(time.Second)
	cost := o.Price.MulFrac(int64(billed)/nano+1, int64(time.Hour)/nano)
	return money.AmountFromMicros(cost.Micros() + liveTrafficMB*o.TrafficPerGB/1000)
}

// rent buys the cheapest offer that is there, within the budget, or ends the run.
func (r *liveRun) rent(offers []provider.Offer) (provider.Instance, provider.Offer) {
	r.t.Helper()
	for _, o := range offers[:min(len(offers), liveAttempts)] {
		bound := r.bound(o)
		if total := r.committed.Add(bound); r.Budget.Less(total) {
			r.t.Fatalf("the cheapest offer, %d %s at $%s/h, could bring the run to $%s; the budget is $%s: it is not rented",
				o.GPUCount, o.GPU, o.Price, total, r.Budget)
		}
		inst, err := r.buy(o, bound)
		if err == nil {
			return inst, o
		}
		gone := provider.KindOf(err) == provider.OfferGone || provider.KindOf(err) == provider.NoCapacity
		if !gone || !provider.Refused(err) {
			r.t.Fatalf("create on %s: %v", o.ID, err)
		}
		r.t.Logf("offer %s: %v", o.ID, err)
	}
	r.t.Skipf("%s had none of its %d cheapest offers", r.Driver.Name(), min(len(offers), liveAttempts))
	return provider.Instance{}, provider.Offer{}
}

// request asks for software that does nothing.
func (r *liveRun) request(o provider.Offer) provider.CreateRequest {
	req := provider.CreateRequest{Offer: o, Tag: r.tag, MaxPrice: o.Price, DiskGB: liveDiskGB}
	req.Boot.Port = bootPort
	if r.caps.Boot == provider.BootVM {
		req.Boot.UserData = "#!/bin/bash\ntrue\n"
		return req
	}
	req.Boot.Image = "docker.io/library/alpine:3.22"
	req.Boot.Command = []string{"/bin/sleep", "600"}
	return req
}

// buy asks for one offer. From before the call until its answer is understood, anything may have been rented.
func (r *liveRun) buy(o provider.Offer, bound money.Amount) (provider.Instance, error) {
	before := r.committed
	r.unclear, r.committed = true, before.Add(bound)
	inst, err := r.Driver.CreateInstance(r.t.Context(), r.request(o))
	if e := asError(err); e != nil && e.InstanceID != "" {
		r.ids = append(r.ids, e.InstanceID)
	}
	switch {
	case err == nil:
		r.ids = append(r.ids, inst.ID)
		r.unclear = false
		r.t.Logf("rented %s: %d %s, %s, at $%s/h; at most $%s", inst.ID, o.GPUCount, o.GPU, o.CapacityType, o.Price, bound)
	case provider.Refused(err):
		r.unclear, r.committed = false, before
	}
	return inst, err
}

// listed: a list lag after its creation it is there, under its tag, as what was bought.
func (r *liveRun) listed(ctx context.Context, inst provider.Instance, o provider.Offer) {
	r.t.Helper()
	r.wait(ctx, r.caps.ListLag)
	got, err := r.Driver.GetInstance(ctx, inst.ID)
	if err != nil {
		r.t.Fatalf("get %s a list lag after its creation: %v", inst.ID, err)
	}
	for _, f := range []provider.InstanceFilter{{Tag: r.tag}, {TagPrefix: LiveTagPrefix}} {
		found, err := r.Driver.ListInstances(ctx, f)
		if err != nil || len(found) != 1 || found[0].ID != inst.ID || found[0].Tag != r.tag {
			r.t.Errorf("list %+v: %+v, %v; want instance %s with tag %s alone", f, found, err, inst.ID, r.tag)
		}
	}
	if got.Tag != r.tag || got.CapacityType != o.CapacityType || got.GPU != o.GPU || got.GPUCount != o.GPUCount {
		r.t.Errorf("bought %d %s (%s) with tag %s; it reads as %+v", o.GPUCount, o.GPU, o.CapacityType, r.tag, got)
	}
	if !notAbove(got.Price, o.Price) {
		r.t.Errorf("offered at $%s/h, read back as $%s/h", o.Price, got.Price)
	}
	if got.State == provider.StateUnknown {
		r.t.Errorf("the provider has a word for its state that the driver does not know: %s", got.Message)
	}
}

// runs waits until it is reached, as long as the rental may last: not every host is fast, and that is no fault of a driver.
func (r *liveRun) runs(ctx context.Context, id string) {
	r.t.Helper()
	began := r.Clock.Now()
	const left = time.Minute // for its end
	for r.Clock.Now().Sub(began) < LiveRental-r.caps.ListLag-left && ctx.Err() == nil {
		got, err := r.Driver.GetInstance(ctx, id)
		switch {
		case err != nil:
			r.t.Errorf("get %s: %v", id, err)
			return
		case got.State == provider.StateRunning && got.Address != "" && got.Port != 0:
			r.t.Logf("it runs, at port %d", got.Port)
			return
		case got.State != provider.StatePending && got.State != provider.StateRunning:
			r.t.Logf("it does not come up: %s %s", describe(&got), got.Message)
			return
		}
		r.wait(ctx, max(r.caps.MinPollInterval, 10*time.Second))
	}
	r.t.Logf("it did not come up in the time that was paid for")
}

// ends: destroying twice is harmless, and what is gone stays gone.
func (r *liveRun) ends(id string) {
	r.t.Helper()
	ctx, cancel := r.within(LiveCleanUp)
	defer cancel()
	for i := range 2 {
		if err := r.Driver.DestroyInstance(ctx, id); err != nil && (i == 0 || provider.KindOf(err) != provider.NotFound) {
			r.t.Errorf("destroy %s: %v", id, err)
		}
	}
	if err := r.gone(ctx, LiveCleanUp); err != nil {
		r.t.Errorf("%v", err)
	}
}

// patience is how long the last clean-up tries: to the end of the process, if that is known, since what is left then bills.
func (r *liveRun) patience() time.Duration {
	const forTheReport = 15 * time.Second
	atLeast := r.caps.CreateTimeout + LiveCleanUp
	if r.End.IsZero() {
		return atLeast
	}
	return max(atLeast, r.End.Sub(r.Clock.Now())-forTheReport)
}

// cleanUp ends everything with the prefix and confirms it, as soon as it can and for so long at the most. It does not end
// with the run's context.
func (r *liveRun) cleanUp(atMost time.Duration) {
	ctx, cancel := r.within(atMost)
	defer cancel()
	if r.unclear { // what was sent may take effect yet
		r.wait(ctx, r.caps.CreateTimeout)
	}
	if err := r.gone(ctx, atMost); err != nil {
		r.t.Errorf("THESE MAY STILL BE BILLED, end them in the console of %s: %v, and all named %s…: %v",
			r.Driver.Name(), r.ids, LiveTagPrefix, err)
	}
	if !r.committed.IsZero() {
		r.t.Logf("the run cost $%s at the most, if nothing is named as left", r.committed)
	}
}

func (r *liveRun) within(d time.Duration) (context.Context, context.CancelFunc) {
	return context.WithTimeout(context.WithoutCancel(r.t.Context()), d)
}

// gone destroys what is left until two looks a list lag apart find nothing, by list and by get.
func (r *liveRun) gone(ctx context.Context, atMost time.Duration) error {
	var last error
	end := r.Clock.Now().Add(atMost)
	for clean := 0; clean < 2; {
		left, err := r.sweep(ctx)
		switch {
		case ctx.Err() != nil || r.Clock.Now().After(end):
			return errors.Join(errors.New("not confirmed gone in time"), last, err)
		case err != nil || left > 0:
			clean, last = 0, err
		default:
			if clean++; len(r.ids) == 0 && !r.unclear {
				return nil // there is nothing that could come into sight yet
			}
		}
		r.wait(ctx, max(r.caps.ListLag, r.caps.MinPollInterval))
	}
	return nil
}

// sweep asks for the end of what is still there, and says how many that are. A driver that panics has failed.
func (r *liveRun) sweep(ctx context.Context) (left int, err error) {
	defer func() {
		if p := recover(); p != nil {
			err = fmt.Errorf("panic: %v", p)
		}
	}()
	found, err := r.Driver.ListInstances(ctx, provider.InstanceFilter{TagPrefix: LiveTagPrefix})
	if err != nil {
		return 0, err
	}
	listed := map[string]bool{}
	for _, inst := range found {
		if !strings.HasPrefix(inst.Tag, LiveTagPrefix) {
			continue
		}
		listed[inst.ID] = true
		if !slices.Contains(r.ids, inst.ID) {
			r.ids = append(r.ids, inst.ID)
		}
	}
	for _, id := range r.ids {
		if !listed[id] {
			if _, err := r.Driver.GetInstance(ctx, id); provider.KindOf(err) == provider.NotFound {
				continue
			}
		}
		left++
		if err := r.Driver.DestroyInstance(ctx, id); err != nil && provider.KindOf(err) != provider.NotFound {
			r.t.Logf("destroy %s: %v", id, err)
		}
	}
	return left, nil
}

func (r *liveRun) wait(ctx context.Context, d time.Duration) {
	select {
	case <-r.Clock.After(d):
	case <-ctx.Done():
	}
}

// liveHarness is a Harness of which only the driver is there.
type liveHarness struct {
	Harness
	driver provider.Provider
}

// Driver is the account's.
func (h liveHarness) Driver() provider.Provider { return h.driver }
