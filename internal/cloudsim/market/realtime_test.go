package market_test

import (
	"fmt"
	"sync"
	"testing"
	"time"

	"github.com/munhq/gpuscale/internal/cloudsim/body"
	"github.com/munhq/gpuscale/internal/cloudsim/market"
)

// With a real clock bodies start and die in time though nobody asks.
func TestRealClockActsByItself(t *testing.T) {
	started := make(chan *body.InertBody, 1)
	m := market.New(market.Config{Provider: "test", Offers: []market.Offer{slice("1", 1, 1)},
		Boot: market.Boot{Accept: 5 * time.Millisecond, Load: 20 * time.Millisecond}, DestroyLag: 20 * time.Millisecond,
		Body: body.FactoryFunc(func(ctx, body.Spec) (body.Body, error) {
			b := body.NewInert()
			started <- b
			return b, nil
		})})
	defer m.Close()
	in := rent(t, m, market.RentRequest{})
	var b *body.InertBody
	select {
	case b = <-started:
	case <-time.After(20 * time.Second):
		t.Fatal("the body was never started")
	}
	if err := m.Destroy("", in.ID, "tenant"); err != nil {
		t.Fatal(err)
	}
	select {
	case <-b.Done():
	case <-time.After(20 * time.Second):
		t.Fatal("the body was never ended")
	}
}

// usage counts the GPUs of each machine that have software on them.
type usage struct {
	t    *testing.T
	mu   sync.Mutex
	gpus map[string]int
}

func onMachine(in market.Instance, s *body.Spec) { s.Env["machine"] = in.Offer.Machine }

func (u *usage) Start(_ ctx, s body.Spec) (body.Body, error) {
	u.add(s.Env["machine"], s.GPU.Count)
	return &usingBody{InertBody: body.NewInert(), end: sync.OnceFunc(func() { u.add(s.Env["machine"], -s.GPU.Count) })}, nil
}

func (u *usage) add(machine string, n int) {
	u.mu.Lock()
	defer u.mu.Unlock()
	if u.gpus[machine] += n; u.gpus[machine] > 2 || machine == "" {
		u.t.Errorf("machine %q has %d of 2 GPUs in use", machine, u.gpus[machine])
	}
}

type usingBody struct {
	*body.InertBody
	end func()
}

func (b *usingBody) Kill() {
	b.end()
	b.InertBody.Kill()
}

// Many callers at once: GPUs are never sold twice, and the books agree with themselves.
func TestManyAtOnce(t *testing.T) {
	var offers []market.Offer
	for i := range 8 {
		offers = append(offers, slice(fmt.Sprint(i), 2, 2), slice(fmt.Sprint(i), 1, 2))
	}
	use := &usage{t: t, gpus: map[string]int{}}
	m := market.New(market.Config{Provider: "test", Seed: 3, Offers: offers, DestroyLag: time.Millisecond, Body: use,
		Boot: market.Boot{Load: time.Millisecond}, Reclaim: market.Reclaim{PerHour: 1e6, Hold: 2 * time.Millisecond, Resumes: true}})
	defer m.Close()
	var wg sync.WaitGroup
	for w := range 8 {
		wg.Go(func() {
			for range 40 {
				for _, o := range m.Offers() {
					in, err := m.Rent(market.RentRequest{Account: fmt.Sprint(w), OfferID: o.ID, Spot: w%2 == 0,
						Bid: o.MinBid, Prepare: onMachine})
					if err != nil {
						continue
					}
					_ = m.Stop("", in.ID)
					_ = m.Start("", in.ID)
					m.List("")
					_ = m.Destroy("", in.ID, "tenant")
					break
				}
			}
		})
	}
	wg.Wait()
	b := m.Books()
	if b.Rented == 0 {
		t.Fatal("nothing was rented")
	}
	for _, s := range b.Series {
		if s.GPUs < s.Live || s.Running > s.Live || s.PerHour > s.CommittedPerHour {
			t.Fatalf("impossible: %+v", s)
		}
	}
	var sum market.Nano
	for _, in := range b.Instances {
		sum += in.Spent
	}
	if sum != b.Spent {
		t.Errorf("the parts cost %s, the whole %s", sum, b.Spent)
	}
}
