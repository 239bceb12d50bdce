package market_test

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/http/httptest"
	"slices"
	"strings"
	"testing"
	"time"

	testingclock "k8s.io/utils/clock/testing"

	"github.com/munhq/gpuscale/internal/cloudsim/body"
	"github.com/munhq/gpuscale/internal/cloudsim/market"
)

type ctx = context.Context

var opening = time.Date(2026, 8, 1, 12, 0, 0, 0, time.UTC)

func open(t *testing.T, cfg market.Config) (*market.Market, *testingclock.FakeClock) {
	t.Helper()
	fc := testingclock.NewFakeClock(opening)
	cfg.Clock = fc
	if cfg.Provider == "" {
		cfg.Provider = "test"
	}
	m := market.New(cfg)
	t.Cleanup(m.Close)
	return m, fc
}

// slice is an offer of some of a machine's GPUs: $0.36/h and $0.0001/h/GB of disk.
func slice(machine string, gpus, of int) market.Offer {
	return market.Offer{Machine: machine, GPU: "RTX 4090", GPUs: gpus, MachineGPUs: of, GPUMemoryMB: 24564, DiskGB: 500,
		OnDemand: market.USD(0.36), MinBid: market.USD(0.18), StorageMonth: market.USD(0.072), CUDA: 12.8}
}

func rent(t *testing.T, m *market.Market, q market.RentRequest) market.Instance {
	t.Helper()
	if q.OfferID == "" {
		q.OfferID = m.Offers()[0].ID
	}
	in, err := m.Rent(q)
	if err != nil {
		t.Fatal(err)
	}
	return in
}

func get(t *testing.T, m *market.Market, id string) market.Instance {
	t.Helper()
	for _, in := range m.Books().Instances {
		if in.ID == id {
			return in
		}
	}
	t.Fatalf("no %s in the books", id)
	return market.Instance{}
}

func code(err error) market.Code {
	var e *market.Error
	if errors.As(err, &e) {
		return e.Code
	}
	return ""
}

func TestBootStopStartDestroyBilling(t *testing.T) {
	m, fc := open(t, market.Config{Offers: []market.Offer{slice("1", 1, 1)},
		Boot: market.Boot{Accept: 10 * time.Second, Create: 10 * time.Second, Load: 40 * time.Second}})
	in := rent(t, m, market.RentRequest{DiskGB: 100})
	if in.GPURate != market.USD(0.36) || in.StorageRate != market.USD(0.01) {
		t.Fatalf("rates %s %s", in.GPURate, in.StorageRate)
	}
	fc.Step(time.Minute)
	m.Tick()
	fc.Step(time.Hour)
	// A minute of disk while it booted, an hour of both.
	want := market.USD(0.36) + market.USD(0.01) + market.USD(0.01)/60 + 1
	if got := get(t, m, in.ID); got.State != market.Running || got.Spent != want {
		t.Fatalf("%s spent %s, want %s", got.State, got.Spent, want)
	}
	if err := m.Stop("", in.ID); err != nil {
		t.Fatal(err)
	}
	fc.Step(time.Hour)
	if got := get(t, m, in.ID); got.Spent-want != market.USD(0.01) || got.HostPort != 0 {
		t.Errorf("an hour stopped cost %s", got.Spent-want)
	}
	if err := m.SetOffline(in.ID, true); err != nil {
		t.Fatal(err)
	}
	before := m.Books().Spent
	fc.Step(time.Hour)
	if got := m.Books().Spent; got != before {
		t.Errorf("an hour offline cost %s", got-before)
	}
	if err := m.SetOffline(in.ID, false); err != nil {
		t.Fatal(err)
	}
	if err := m.Start("", in.ID); err != nil {
		t.Fatal(err)
	}
	fc.Step(time.Minute)
	m.Tick()
	if got := get(t, m, in.ID); got.State != market.Running || got.Starts != 2 {
		t.Errorf("%s after %d starts", got.State, got.Starts)
	}
	if err := m.Destroy("", in.ID, "tenant"); err != nil {
		t.Fatal(err)
	}
	spent := m.Books().Spent
	fc.Step(time.Hour)
	if b := m.Books(); b.Spent != spent || b.Now.Live != 0 || b.Now.PerHour != 0 {
		t.Errorf("after the end: %+v spent %s", b.Now, b.Spent-spent)
	}
	if err := m.Destroy("", in.ID, "tenant"); code(err) != market.NoSuchInstance {
		t.Errorf("second destroy: %v", err)
	}
}

// Events happen in the books when they are due, however late anyone looks.
func TestBooksAreExactWhoeverLooks(t *testing.T) {
	m, fc := open(t, market.Config{Offers: []market.Offer{slice("1", 1, 1)}, Boot: market.Boot{Load: 90 * time.Second},
		DestroyLag: 7 * time.Second})
	in := rent(t, m, market.RentRequest{})
	fc.Step(24 * time.Hour)
	got := get(t, m, in.ID)
	if want := opening.Add(90 * time.Second); !got.StartedAt.Equal(want) {
		t.Errorf("started %v, want %v", got.StartedAt, want)
	}
	if err := m.Destroy("", in.ID, "tenant"); err != nil {
		t.Fatal(err)
	}
	fc.Step(time.Hour)
	got = get(t, m, in.ID)
	if want := opening.Add(24*time.Hour + 7*time.Second); !got.GoneAt.Equal(want) {
		t.Errorf("gone %v, want %v", got.GoneAt, want)
	}
	if want := market.USD(0.36) * (24*3600 - 90 + 7) / 3600; got.Spent != want {
		t.Errorf("spent %s, want %s", got.Spent, want)
	}
	for i, s := range m.Books().Series {
		t.Log(i, s.At.Sub(opening), s.Live, s.PerHour, s.CommittedPerHour)
	}
	series := m.Books().Series
	if peak := m.Books().Peak(); peak.Live != 1 || peak.PerHour != market.USD(0.36) || peak.GPUs != 1 {
		t.Errorf("peak %+v", peak)
	}
	if !slices.IsSortedFunc(series, func(a, b market.Sample) int { return a.At.Compare(b.At) }) {
		t.Error("the series goes back in time")
	}
}

func TestMinimumAndGranularity(t *testing.T) {
	m, fc := open(t, market.Config{Offers: []market.Offer{slice("1", 1, 1)},
		Billing: market.Billing{Granularity: 10 * time.Minute, Minimum: time.Hour}})
	in := rent(t, m, market.RentRequest{})
	m.Tick()
	fc.Step(11 * time.Minute)
	if got := get(t, m, in.ID).Spent; got != market.USD(0.12) {
		t.Errorf("11 minutes in steps of ten cost %s", got)
	}
	if err := m.Destroy("", in.ID, "tenant"); err != nil {
		t.Fatal(err)
	}
	if got := get(t, m, in.ID).Spent; got != market.USD(0.36) {
		t.Errorf("the minimum of an hour cost %s", got)
	}
}

func TestStockAndOfferIDs(t *testing.T) {
	m, _ := open(t, market.Config{Offers: []market.Offer{slice("1", 8, 8), slice("1", 4, 8), slice("1", 2, 8), slice("1", 1, 8)}})
	first := m.Offers()
	if len(first) != 4 {
		t.Fatalf("%d offers", len(first))
	}
	four := rent(t, m, market.RentRequest{OfferID: first[1].ID})
	if _, err := m.Rent(market.RentRequest{OfferID: first[1].ID}); code(err) != market.NoSuchOffer {
		t.Errorf("an offer was rented twice: %v", err)
	}
	if _, err := m.Rent(market.RentRequest{OfferID: first[0].ID}); code(err) != market.NoCapacity {
		t.Errorf("eight GPUs with four in use: %v", err)
	}
	ids := func() (sizes []int) {
		for _, o := range m.Offers() {
			sizes = append(sizes, o.GPUs)
		}
		slices.Sort(sizes)
		return sizes
	}
	if got := ids(); !slices.Equal(got, []int{1, 2, 4}) {
		t.Errorf("on sale %v", got)
	}
	waiting := rent(t, m, market.RentRequest{OfferID: first[0].ID, Wait: true})
	if got := get(t, m, waiting.ID); !got.Waiting || got.State != market.Accepted {
		t.Errorf("waiting is %+v", got.State)
	}
	if err := m.Destroy("", four.ID, "tenant"); err != nil {
		t.Fatal(err)
	}
	if got := get(t, m, waiting.ID); got.Waiting || got.State != market.Running {
		t.Errorf("it waits on with eight GPUs free: %s", got.State)
	}
	if got := ids(); len(got) != 0 {
		t.Errorf("on sale %v with all in use", got)
	}
	if err := m.Destroy("", waiting.ID, "tenant"); err != nil {
		t.Fatal(err)
	}
	if got := ids(); !slices.Equal(got, []int{1, 2, 4, 8}) {
		t.Errorf("on sale %v with all free", got)
	}
	for _, o := range m.Offers() {
		if o.ID == first[0].ID || o.ID == first[1].ID {
			t.Errorf("the id of a rental came back: %s", o.ID)
		}
	}
}

func TestStableOfferIDs(t *testing.T) {
	o := slice("zone/type", 1, 2)
	o.ID = "type-a"
	m, _ := open(t, market.Config{Offers: []market.Offer{o}, StableOfferIDs: true})
	for range 2 {
		rent(t, m, market.RentRequest{OfferID: "type-a"})
	}
	if _, err := m.Rent(market.RentRequest{OfferID: "type-a"}); code(err) != market.NoCapacity {
		t.Errorf("a third of two: %v", err)
	}
}

func TestReclaim(t *testing.T) {
	m, fc := open(t, market.Config{Offers: []market.Offer{slice("1", 1, 1)},
		Reclaim: market.Reclaim{Hold: 10 * time.Minute, Resumes: true}})
	in := rent(t, m, market.RentRequest{Spot: true, Bid: market.USD(0.2), DiskGB: 100})
	if in.GPURate != market.USD(0.2) {
		t.Errorf("pays %s, not its bid", in.GPURate)
	}
	m.Tick()
	if err := m.Reclaim(in.ID); err != nil {
		t.Fatal(err)
	}
	got := get(t, m, in.ID)
	if got.State != market.Stopped || !got.Reclaimed || got.Wanted != market.Running {
		t.Errorf("%s reclaimed %v wanted %s", got.State, got.Reclaimed, got.Wanted)
	}
	if b := m.Books(); b.Now.PerHour != market.USD(0.01) || b.Now.CommittedPerHour != market.USD(0.21) {
		t.Errorf("bills %+v", b.Now)
	}
	if n := len(m.Offers()); n != 0 {
		t.Errorf("%d offers of a machine that someone else has", n)
	}
	fc.Step(10 * time.Minute)
	if got := get(t, m, in.ID); got.State != market.Running || got.Reclaimed {
		t.Errorf("it did not come back: %s", got.State)
	}
}

func TestReclaimWithNoticeDestroys(t *testing.T) {
	noticed := &noticedBody{InertBody: body.NewInert()}
	m, fc := open(t, market.Config{Offers: []market.Offer{slice("1", 1, 1)}, Afterlife: time.Hour,
		Body:    body.FactoryFunc(func(_ ctx, _ body.Spec) (body.Body, error) { return noticed, nil }),
		Reclaim: market.Reclaim{Notice: 2 * time.Minute, Destroys: true}})
	in := rent(t, m, market.RentRequest{Spot: true, Bid: market.USD(0.2)})
	m.Tick()
	if err := m.Reclaim(in.ID); err != nil {
		t.Fatal(err)
	}
	if got := get(t, m, in.ID); got.State != market.Running || !got.ReclaimAt.Equal(opening.Add(2*time.Minute)) {
		t.Errorf("%s until %v", got.State, got.ReclaimAt)
	}
	if !noticed.at.Equal(opening.Add(2 * time.Minute)) {
		t.Errorf("the body was told %v", noticed.at)
	}
	fc.Step(2 * time.Minute)
	if shown, err := m.Get("", in.ID); err != nil || shown.State != market.Gone || !shown.Reclaimed {
		t.Errorf("%v %v", shown.State, err)
	}
	fc.Step(time.Hour)
	if _, err := m.Get("", in.ID); code(err) != market.NoSuchInstance {
		t.Errorf("shown for ever: %v", err)
	}
}

type noticedBody struct {
	*body.InertBody
	at time.Time
}

func (b *noticedBody) Notice(at time.Time) { b.at = at }

func TestWalkingPricesOutbid(t *testing.T) {
	m, fc := open(t, market.Config{Offers: []market.Offer{slice("1", 1, 1)}, Walk: market.Walk{Step: time.Minute, Spot: 0.5}})
	floor := func() market.Nano {
		o := m.Offers()
		if len(o) == 0 {
			return 0
		}
		return o[0].MinBid
	}
	in := rent(t, m, market.RentRequest{Spot: true, Bid: floor()})
	for range 600 {
		fc.Step(time.Minute)
		if get(t, m, in.ID).Reclaimed {
			return
		}
	}
	t.Error("a bid at the floor was never outbid in ten hours of a walking market")
}

func TestRandomReclaimsFollowTheRate(t *testing.T) {
	var offers []market.Offer
	for i := range 400 {
		offers = append(offers, slice(fmt.Sprint(i), 1, 1))
	}
	m, fc := open(t, market.Config{Offers: offers, Reclaim: market.Reclaim{PerHour: 0.5}})
	for _, o := range m.Offers() {
		rent(t, m, market.RentRequest{OfferID: o.ID, Spot: true, Bid: o.MinBid})
	}
	fc.Step(time.Hour)
	n := 0
	for _, in := range m.Books().Instances {
		if in.Reclaimed {
			n++
		}
	}
	if n < 120 || n > 195 { // 1 − e^−½ of 400 is 157.
		t.Errorf("%d of 400 reclaimed in an hour at a rate of one half", n)
	}
}

func TestBreakages(t *testing.T) {
	tests := map[market.Breakage]market.State{
		market.DiesBooting: market.Exited, market.StuckCreated: market.Created, market.StuckLoading: market.Loading,
		market.NoAddress: market.Running, market.Unreachable: market.Running, market.WrongGPU: market.Running,
		market.OldDriver: market.Running,
	}
	for breakage, want := range tests {
		t.Run(string(breakage), func(t *testing.T) {
			o := slice("1", 1, 1)
			o.Broken = breakage
			var spec body.Spec
			m, fc := open(t, market.Config{Offers: []market.Offer{o}, Boot: market.Boot{Load: time.Minute},
				Body: body.FactoryFunc(func(_ ctx, s body.Spec) (body.Body, error) { spec = s; return body.NewInert(), nil })})
			in := rent(t, m, market.RentRequest{})
			fc.Step(time.Hour)
			got := get(t, m, in.ID)
			if got.State != want {
				t.Errorf("%s, want %s", got.State, want)
			}
			if (got.HostPort == 0) != (want != market.Running || breakage == market.NoAddress) {
				t.Errorf("port %d", got.HostPort)
			}
			if breakage == market.WrongGPU && spec.GPU.Name != "NVIDIA GeForce RTX 3060" {
				t.Errorf("the driver tells of a %s", spec.GPU.Name)
			}
		})
	}
	if len(tests) != len(market.Breakages()) {
		t.Error("a breakage is not tested")
	}
}

func TestSoftwareThatEnds(t *testing.T) {
	b := body.NewInert()
	m, _ := open(t, market.Config{Offers: []market.Offer{slice("1", 1, 1)},
		Body: body.FactoryFunc(func(ctx, body.Spec) (body.Body, error) { return b, nil })})
	in := rent(t, m, market.RentRequest{DiskGB: 100})
	m.Tick()
	b.Exit(137)
	deadline := time.Now().Add(10 * time.Second)
	for get(t, m, in.ID).State != market.Exited {
		if time.Now().After(deadline) {
			t.Fatal("nobody noticed")
		}
		time.Sleep(time.Millisecond)
	}
	if got := get(t, m, in.ID); !strings.Contains(got.Message, "137") || m.Books().Now.PerHour != market.USD(0.01) {
		t.Errorf("%q, %s/h", got.Message, m.Books().Now.PerHour)
	}
}

func TestSoftwareThatDoesNotStart(t *testing.T) {
	m, _ := open(t, market.Config{Offers: []market.Offer{slice("1", 1, 1)},
		Body: body.FactoryFunc(func(ctx, body.Spec) (body.Body, error) { return nil, errors.New("no such program") })})
	in := rent(t, m, market.RentRequest{})
	if got := get(t, m, in.ID); got.State != market.Exited || !strings.Contains(got.Message, "no such program") {
		t.Errorf("%s %q", got.State, got.Message)
	}
}

func TestVisibilityAndDestroyControls(t *testing.T) {
	m, fc := open(t, market.Config{Offers: []market.Offer{slice("1", 1, 1), slice("2", 1, 1)}, ListLag: 5 * time.Second})
	in := rent(t, m, market.RentRequest{Account: "a"})
	if _, err := m.Get("a", in.ID); code(err) != market.NoSuchInstance || len(m.List("a")) != 0 {
		t.Errorf("visible at once: %v", err)
	}
	fc.Step(5 * time.Second)
	if _, err := m.Get("a", in.ID); err != nil || len(m.List("a")) != 1 {
		t.Errorf("not visible after the lag: %v", err)
	}
	if _, err := m.Get("b", in.ID); code(err) != market.NoSuchInstance {
		t.Errorf("another account sees it: %v", err)
	}
	m.HoldVisibility(true)
	held := rent(t, m, market.RentRequest{Account: "a"})
	fc.Step(time.Hour)
	if _, err := m.Get("a", held.ID); err == nil || m.Books().Now.Live != 2 {
		t.Error("visible though held")
	}
	m.HoldVisibility(false)
	if _, err := m.Get("a", held.ID); err != nil {
		t.Errorf("held for ever: %v", err)
	}

	m.DestroyRefused(1)
	if err := m.Destroy("a", in.ID, "tenant"); code(err) != market.Refused {
		t.Errorf("not refused: %v", err)
	}
	m.DestroyIgnored(1)
	if err := m.Destroy("a", in.ID, "tenant"); err != nil || get(t, m, in.ID).State == market.Gone {
		t.Errorf("not ignored: %v", err)
	}
	if err := m.Destroy("a", in.ID, "tenant"); err != nil || get(t, m, in.ID).State != market.Gone {
		t.Errorf("third destroy: %v", err)
	}
}

func TestLimitsAndCredit(t *testing.T) {
	var offers []market.Offer
	for i := range 5 {
		offers = append(offers, slice(fmt.Sprint(i), 2, 2))
	}
	m, fc := open(t, market.Config{Offers: offers, Limits: market.Limits{Instances: 3, GPUs: 4, Credit: market.USD(1)}})
	first := rent(t, m, market.RentRequest{Account: "a"})
	rent(t, m, market.RentRequest{Account: "a"})
	order := func() error {
		_, err := m.Rent(market.RentRequest{Account: "a", OfferID: m.Offers()[0].ID})
		return err
	}
	if err := order(); code(err) != market.OverQuota {
		t.Errorf("six GPUs of four: %v", err)
	}
	fc.Step(2 * time.Hour) // 2 × 2 × $0.36 is over a dollar.
	m.Tick()
	if got := get(t, m, first.ID); got.State != market.Stopped {
		t.Errorf("%s with an empty account", got.State)
	}
	if err := m.Destroy("a", first.ID, "tenant"); err != nil {
		t.Fatal(err)
	}
	if err := order(); code(err) != market.NoBalance {
		t.Errorf("rented on an empty account: %v", err)
	}
}

func TestLowBid(t *testing.T) {
	for _, stays := range []bool{false, true} {
		m, _ := open(t, market.Config{Offers: []market.Offer{slice("1", 1, 1)}, LowBidStays: stays})
		in, err := m.Rent(market.RentRequest{OfferID: m.Offers()[0].ID, Spot: true, Bid: market.USD(0.1)})
		if code(err) != market.BidTooLow || (in.ID != "") != stays || m.Books().Now.Live != len(m.List("")) {
			t.Errorf("stays %v: %v %q", stays, err, in.ID)
		}
		if stays && get(t, m, in.ID).State != market.Stopped {
			t.Error("it runs")
		}
	}
}

func TestTokenAndHooks(t *testing.T) {
	m, _ := open(t, market.Config{Offers: []market.Offer{slice("1", 1, 1), slice("2", 1, 1)}})
	var seen []string
	m.OnCreate(func(in market.Instance) { seen = append(seen, in.Label) })
	a := rent(t, m, market.RentRequest{Token: "x", Label: "one"})
	b := rent(t, m, market.RentRequest{Token: "x", Label: "one"})
	if a.ID != b.ID || m.Books().Rented != 1 {
		t.Errorf("%s and %s for one token", a.ID, b.ID)
	}
	if len(seen) == 0 || seen[0] != "one" {
		t.Errorf("hooks saw %v", seen)
	}
	if in, ok := m.ByKey(a.Key); !ok || in.ID != a.ID {
		t.Error("its key does not open it")
	}
}

func TestContractEnds(t *testing.T) {
	o := slice("1", 1, 1)
	o.EndsAt = opening.Add(time.Hour)
	m, fc := open(t, market.Config{Offers: []market.Offer{o}})
	in := rent(t, m, market.RentRequest{})
	fc.Step(time.Hour)
	if got := get(t, m, in.ID); got.State != market.Stopped {
		t.Errorf("%s after the contract", got.State)
	}
	if err := m.Start("", in.ID); code(err) != market.ContractOver {
		t.Errorf("started again: %v", err)
	}
	if n := len(m.Offers()); n != 0 {
		t.Errorf("%d offers whose time is over", n)
	}
}

// Everything that happens follows from the seed: two runs are alike, and another seed is not.
func TestRunsCanBeHadAgain(t *testing.T) {
	run := func(seed int64) string {
		cfg := market.Realistic("vast.ai", seed)
		m, fc := open(t, cfg)
		for i := range 40 {
			o := m.Offers()[i*3]
			_, _ = m.Rent(market.RentRequest{OfferID: o.ID, Spot: true, Bid: o.MinBid + o.MinBid/10, DiskGB: 20})
			fc.Step(20 * time.Minute)
		}
		b := m.Books()
		if b.Rented < 30 {
			t.Fatalf("%d rented", b.Rented)
		}
		out, err := json.Marshal(b)
		if err != nil {
			t.Fatal(err)
		}
		return string(out)
	}
	a, b, c := run(1), run(1), run(2)
	if a != b {
		t.Error("one seed, two runs")
	}
	if a == c {
		t.Error("two seeds, one run")
	}
}

func TestAdminHandler(t *testing.T) {
	m, _ := open(t, market.Config{Offers: []market.Offer{slice("1", 1, 1)}})
	in := rent(t, m, market.RentRequest{Spot: true, Bid: market.USD(0.2), Label: "gs-x", Env: map[string]string{"S": "sesame"}})
	h := m.AdminHandler()
	call := func(method, path, body string) (int, string) {
		w := httptest.NewRecorder()
		h.ServeHTTP(w, httptest.NewRequest(method, path, strings.NewReader(body)))
		return w.Code, w.Body.String()
	}
	status, text := call("GET", "/sim/books", "")
	var b market.Books
	if err := json.Unmarshal([]byte(text), &b); status != 200 || err != nil || b.Now.Live != 1 || len(b.Series) == 0 {
		t.Errorf("%d %v %s", status, err, text)
	}
	if b.Instances[0].GPURate != market.USD(0.2) {
		t.Errorf("rate %s after JSON", b.Instances[0].GPURate)
	}
	for _, secret := range []string{in.Key, "sesame"} {
		if strings.Contains(text, secret) {
			t.Errorf("a secret is in the books")
		}
	}
	if status, _ := call("POST", "/sim/reclaim/"+in.ID, ""); status != 200 || !get(t, m, in.ID).Reclaimed {
		t.Errorf("reclaim: %d", status)
	}
	if status, _ := call("POST", "/sim/reclaim/77", ""); status != 404 {
		t.Errorf("reclaim of nothing: %d", status)
	}
	if status, text := call("POST", "/sim/faults", `{"op":"create","fault":"lost-answer","times":2}`); status != 200 {
		t.Errorf("faults: %d %s", status, text)
	}
	for range 2 {
		if f := m.NextFault(market.OpCreate); f != market.LostAnswer {
			t.Errorf("met %q", f)
		}
	}
	if f := m.NextFault(market.OpCreate); f != market.NoFault {
		t.Errorf("met %q, unasked", f)
	}
	for _, bad := range []string{`{`, `{"op":"create","fault":"flood"}`, `{"fault":"slow"}`, `{"op":"x","fault":"slow","y":1}`} {
		if status, _ := call("POST", "/sim/faults", bad); status != 400 {
			t.Errorf("%s: %d", bad, status)
		}
	}
}

func TestFaultRates(t *testing.T) {
	m, _ := open(t, market.Config{Faults: market.FaultRates{Share: map[market.Fault]float64{market.ServerError: 0.1, market.Slow: 0.05}}})
	n := map[market.Fault]int{}
	for range 4000 {
		n[m.NextFault(market.OpList)]++
	}
	if e, s := n[market.ServerError], n[market.Slow]; e < 320 || e > 480 || s < 140 || s > 260 {
		t.Errorf("met %v", n)
	}
}

func TestThrottle(t *testing.T) {
	fc := testingclock.NewFakeClock(opening)
	th := market.NewThrottle(fc, 0)
	if !th.Spaced("a", 4*time.Second, 12*time.Second) || th.Spaced("a", 4*time.Second, 12*time.Second) {
		t.Error("first passes, second does not")
	}
	if !th.Spaced("b", 4*time.Second, 12*time.Second) {
		t.Error("another key waits")
	}
	fc.Step(11 * time.Second)
	if th.Spaced("a", 4*time.Second, 12*time.Second) {
		t.Error("no penalty")
	}
	fc.Step(12 * time.Second)
	if !th.Spaced("a", 4*time.Second, 12*time.Second) {
		t.Error("the penalty never ends")
	}
	for i := range 11 {
		if got := th.Window("w", 10, time.Minute); got != (i < 10) {
			t.Errorf("call %d: %v", i, got)
		}
	}
	if !market.NewThrottle(fc, -1).Window("w", 0, time.Hour) {
		t.Error("switched off, it throttles")
	}
}

func TestDefaultCatalogue(t *testing.T) {
	offers := market.DefaultOffers(1)
	if n := len(offers); n < 170 || n > 260 {
		t.Errorf("%d offers", n)
	}
	var dear, unverified, smallDisk, arm, unknown, multi int
	gpus := map[string]bool{}
	for _, o := range offers {
		gpus[o.GPU] = true
		count := func(n *int, yes bool) {
			if yes {
				*n++
			}
		}
		count(&dear, o.OnDemand > market.USD(0.5))
		count(&unverified, o.Verification != "verified")
		count(&smallDisk, o.DiskGB < 50)
		count(&arm, o.CPUArch == "arm64")
		count(&unknown, o.GPU == "RTX 7090 Ti")
		count(&multi, o.GPUs > 1)
		if r := o.MinBid.Dollars() / o.OnDemand.Dollars(); r < 0.38 || r > 0.72 {
			t.Errorf("%s: minimum bid %s of %s", o.GPU, o.MinBid, o.OnDemand)
		}
	}
	for what, n := range map[string]int{"dear": dear, "unverified": unverified, "small disk": smallDisk, "arm64": arm,
		"unknown": unknown, "multi": multi} {
		if n == 0 {
			t.Errorf("none %s", what)
		}
	}
	t.Logf("%d offers: %d over $0.50, %d unverified, %d small disks, %d arm64, %d unknown, %d with several GPUs",
		len(offers), dear, unverified, smallDisk, arm, unknown, multi)
	for _, g := range []string{"RTX 3090", "RTX 4090", "RTX 5090", "A100 PCIE", "A100 SXM4", "L40S", "H100 SXM", "RTX A5000",
		"RTX A6000"} {
		if !gpus[g] {
			t.Errorf("no %s", g)
		}
	}
}

func TestNano(t *testing.T) {
	for n, want := range map[market.Nano]string{0: "0", market.Nano1: "1", market.USD(0.38): "0.38", -market.USD(1.5): "-1.5",
		1: "0.000000001"} {
		if n.String() != want {
			t.Errorf("%d is %s, want %s", n, n, want)
		}
		var back market.Nano
		if err := json.Unmarshal([]byte(n.String()), &back); err != nil || back != n {
			t.Errorf("%s read back as %d: %v", n, back, err)
		}
	}
}
