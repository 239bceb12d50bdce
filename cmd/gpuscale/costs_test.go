package main

import (
	"encoding/json"
	"strings"
	"testing"
	"time"

	"github.com/munhq/gpuscale/internal/ledger"
	"github.com/munhq/gpuscale/pkg/money"
)

// costLedger has a billed rental of two models over two days, an ended one of an hourly provider, and one that runs.
func costLedger(t *testing.T) string {
	t.Helper()
	url := "sqlite://" + t.TempDir() + "/ledger.db"
	l, err := ledger.Open(t.Context(), url)
	if err != nil {
		t.Fatal(err)
	}
	at := func(h int) *time.Time {
		at := time.Date(2026, 3, 1, 22, 0, 0, 0, time.UTC).Add(time.Duration(h) * time.Hour)
		return &at
	}
	rate := money.MustParse("0.50")
	for _, in := range []ledger.Instance{
		{Token: "a", Pool: "chat", Provider: "vast.ai", CreatedAt: at(0), DestroyAskedAt: at(4), GoneAt: at(4), InstanceID: "1",
			Shares:      []ledger.Share{{Model: "llama", Weight: 667}, {Model: "qwen", Weight: 333}},
			BillingStep: time.Second, Bill: &ledger.Bill{Amount: money.AmountFromMicros(1_000_001), Step: money.AmountFromMicros(1)}},
		{Token: "b", Pool: "batch", Provider: "hourly", CreatedAt: at(0), DestroyAskedAt: at(1), GoneAt: at(1), InstanceID: "2",
			Models: []string{"llama"}, BillingStep: 2 * time.Hour},
		{Token: "c", Pool: "chat", Provider: "vast.ai", CreatedAt: at(1), InstanceID: "3", BillingStep: time.Second},
	} {
		in.Rate = &rate
		if err := l.Update(t.Context(), in); err != nil {
			t.Fatal(err)
		}
	}
	if err := l.Close(); err != nil {
		t.Fatal(err)
	}
	return url
}

func TestCosts(t *testing.T) {
	url := costLedger(t)
	window := []string{"costs", "--ledger", url, "--from", "2026-03-01T00:00:00Z", "--to", "2026-03-02T03:00:00Z"}
	for by, want := range map[string][]string{
		"pool": {"batch $1.00 1 $1.00 estimated, billed in steps of 2h0m0s", "chat $3.000001 2 1 running; $2.00 estimated, billed in steps of 1s",
			"total $4.000001 3 1 running; $3.00 estimated, billed in steps of 2h0m0s"},
		"provider": {"hourly $1.00 1", "vast.ai $3.000001 2", "total $4.000001 3"},
		"model":    {"(none) $2.00 1 1 running", "llama $1.667001 2", "qwen $0.333 1", "total $4.000001 3"},
		"day":      {"2026-03-01 $2.00 3", "2026-03-02 $2.000001 2", "total $4.000001 3"},
	} {
		t.Run(by, func(t *testing.T) {
			code, out, errOut := try(t, nil, append(window, "--by", by)...)
			if code != exitOK || errOut != "" {
				t.Fatalf("exit status %d, %q", code, errOut)
			}
			lines := strings.Split(strings.TrimSpace(out), "\n")
			if len(lines) != len(want)+1 || !strings.HasPrefix(lines[0], strings.ToUpper(by)) {
				t.Fatalf("output:\n%s", out)
			}
			for i, line := range lines[1:] {
				if got := strings.Join(strings.Fields(line), " "); !strings.HasPrefix(got, want[i]) {
					t.Errorf("%q; want %q", got, want[i])
				}
			}
		})
	}
	_, out, _ := try(t, nil, append(window, "-o", "json")...)
	var got struct {
		Costs []struct {
			Name string
			Cost json.Number
		}
		Total struct {
			Cost, Estimated json.Number
			Running         int
		}
	}
	if err := json.Unmarshal([]byte(out), &got); err != nil || len(got.Costs) != 2 || got.Total.Cost != "4.000001" || got.Total.Estimated != "3.00" || got.Total.Running != 1 {
		t.Errorf("%v in %s", err, out)
	}
}

func TestCostsRefuses(t *testing.T) {
	url := costLedger(t)
	for name, c := range map[string]struct {
		args []string
		code int
		says string
	}{
		"by":       {[]string{"--by", "colour"}, exitUsage, "pool, model, provider or day"},
		"output":   {[]string{"-o", "xml"}, exitUsage, "table or json"},
		"no time":  {[]string{"--from", "yesterday"}, exitUsage, "not a time"},
		"inverted": {[]string{"--from", "2026-03-02", "--to", "2026-03-01"}, exitUsage, "not before"},
		"server":   {[]string{"--ledger", "postgres://u:secret@127.0.0.1:1/db"}, exitFailure, "127.0.0.1:1/db"},
	} {
		t.Run(name, func(t *testing.T) {
			code, _, errOut := try(t, nil, append([]string{"costs", "--ledger", url}, c.args...)...)
			if code != c.code || !strings.Contains(errOut, c.says) || strings.Contains(errOut, "secret") {
				t.Errorf("exit status %d, %q", code, errOut)
			}
		})
	}
}
