package search_test

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/clock"

	"github.com/munhq/gpuscale/api/v1alpha1"
	"github.com/munhq/gpuscale/internal/account"
	"github.com/munhq/gpuscale/internal/offers"
	"github.com/munhq/gpuscale/internal/planner"
	"github.com/munhq/gpuscale/internal/search"
	"github.com/munhq/gpuscale/pkg/provider"
)

// shop is a driver that is asked for offers and nothing else.
type shop struct {
	provider.Provider
	name provider.Name
	err  error
	// hold, where it is set, keeps answers back until it is closed.
	hold chan struct{}

	mu    sync.Mutex
	asked []provider.OfferQuery
}

func (s *shop) Name() provider.Name { return s.name }

func (s *shop) Capabilities() provider.Capabilities {
	return provider.Capabilities{Spot: true, OnDemand: true, SearchInterval: time.Nanosecond}
}

func (s *shop) SearchOffers(ctx context.Context, q provider.OfferQuery) ([]provider.Offer, error) {
	s.mu.Lock()
	s.asked = append(s.asked, q)
	s.mu.Unlock()
	if s.hold != nil {
		select {
		case <-s.hold:
		case <-ctx.Done():
			return nil, ctx.Err()
		}
	}
	if s.err != nil {
		return nil, s.err
	}
	return []provider.Offer{{Provider: s.name, ID: fmt.Sprintf("%s at %d GB", q.CapacityType, q.DiskGB), CapacityType: q.CapacityType}}, nil
}

func (s *shop) queries() int {
	s.mu.Lock()
	defer s.mu.Unlock()
	return len(s.asked)
}

// street has an account at each shop, by provider; at others there are no credentials.
type street map[string]*account.Account

func (s street) For(_ context.Context, ref account.Ref) (*account.Account, error) {
	if a, ok := s[string(ref.Provider)]; ok {
		return a, nil
	}
	return nil, fmt.Errorf("no credentials for %s", ref.Provider)
}

func open(t *testing.T, shops ...*shop) street {
	t.Helper()
	out := street{}
	for _, s := range shops {
		out[string(s.name)] = &account.Account{Provider: s.name, Fingerprint: "key of " + string(s.name), Driver: s,
			Catalogue: offers.NewCatalogue(t.Context(), s, clock.RealClock{})}
	}
	return out
}

func pool(name string, disk int32, entries ...string) *v1alpha1.GPUNodePool {
	p := &v1alpha1.GPUNodePool{ObjectMeta: metav1.ObjectMeta{Name: name}}
	p.Spec.Requirements.MinDisk = disk
	for _, e := range entries {
		of, kind, _ := strings.Cut(e, " ")
		p.Spec.Providers = append(p.Spec.Providers, v1alpha1.ProviderSpec{Name: of, CapacityType: kind})
	}
	return p
}

// told is a market in a few words.
func told(m planner.Market) string {
	out := fmt.Sprintf("%s/%d %s:", m.Pool, m.Entry, m.Account)
	for _, o := range m.Offers {
		out += fmt.Sprintf(" %s %s", o.Provider, o.ID)
	}
	if m.Err != "" {
		out += " " + m.Err
	}
	return out
}

// TestEveryEntryHasAMarket, in the order of pools and entries: its own offers, or why it has none. Nobody else's failure is in it.
func TestEveryEntryHasAMarket(t *testing.T) {
	refused := provider.Errorf("b", "search", provider.Unauthorized, "who are you")
	a, b := &shop{name: "a"}, &shop{name: "b", err: refused}
	leaving := pool("leaving", 50, "a spot")
	leaving.DeletionTimestamp = &metav1.Time{Time: time.Unix(1, 0)}
	var (
		mu       sync.Mutex
		answered []string
		failed   []string
	)
	s := search.Searcher{Accounts: open(t, a, b), Patience: time.Minute,
		Failed: func(acct *account.Account, err error) {
			mu.Lock()
			defer mu.Unlock()
			failed = append(failed, fmt.Sprintf("%s %v", acct.Provider, errors.Is(err, refused)))
		},
		Answered: func(m planner.Market) {
			mu.Lock()
			defer mu.Unlock()
			answered = append(answered, told(m))
		}}
	var got []string
	for _, m := range s.Markets(t.Context(), []*v1alpha1.GPUNodePool{
		pool("first", 50, "a spot", "b spot", "a on-demand"), leaving, pool("second", 80, "c spot", "a spot"), pool("third", 80, "a spot"),
	}) {
		got = append(got, told(m))
	}
	want := []string{
		"first/0 key of a: a spot at 50 GB",
		"first/1 key of b: " + refused.Error(),
		"first/2 key of a: a on-demand at 50 GB",
		"second/0 : no credentials for c",
		"second/1 key of a: a spot at 80 GB",
		"third/0 key of a: a spot at 80 GB",
	}
	if !slices.Equal(got, want) {
		t.Errorf("markets are\n%s\nwant\n%s", strings.Join(got, "\n"), strings.Join(want, "\n"))
	}
	if slices.Sort(answered); !slices.Equal(answered, slices.Sorted(slices.Values(want))) {
		t.Errorf("told of %q", answered)
	}
	if !slices.Equal(failed, []string{"b true"}) { // One without an account failed no search.
		t.Errorf("failed: %q", failed)
	}
	if n := a.queries(); n != 3 { // What two pools ask alike is asked once.
		t.Errorf("a was asked %d times: %+v", n, a.asked)
	}
}

// TestASlowProviderDelaysNobody beyond the patience, and what it answers later is found by the next call.
func TestASlowProviderDelaysNobody(t *testing.T) {
	quick, slow := &shop{name: "quick"}, &shop{name: "slow", hold: make(chan struct{})}
	s := search.Searcher{Accounts: open(t, quick, slow), Patience: 200 * time.Millisecond}
	pools := []*v1alpha1.GPUNodePool{pool("p", 50, "slow spot", "quick spot")}
	began := time.Now()
	got := s.Markets(t.Context(), pools)
	if took := time.Since(began); took > 5*time.Second {
		t.Errorf("it took %s", took)
	}
	if len(got[0].Offers) > 0 || !strings.Contains(got[0].Err, "no answer within 200ms") || len(got[1].Offers) != 1 || got[1].Err != "" {
		t.Errorf("%s; %s", told(got[0]), told(got[1]))
	}
	close(slow.hold)
	for deadline := time.Now().Add(20 * time.Second); len(got[0].Offers) == 0; got = s.Markets(t.Context(), pools) {
		if time.Now().After(deadline) {
			t.Fatalf("its answer is never found: %s", told(got[0]))
		}
	}
	if n := slow.queries(); n != 1 {
		t.Errorf("it was asked %d times; the one answer was on its way", n)
	}
}
