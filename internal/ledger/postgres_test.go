package ledger

import (
	"context"
	"net"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/munhq/gpuscale/internal/ledger/postgrestest"
)

func TestPostgresConnectionsAreBoundedAndDurable(t *testing.T) {
	l := onPostgres(t)
	for name, want := range map[string]string{"synchronous_commit": "on", "statement_timeout": "10s", "lock_timeout": "5s",
		"idle_in_transaction_session_timeout": "20s", "application_name": "gpuscale"} {
		var got string
		do(t, l.write.QueryRowContext(t.Context(), "SHOW "+name).Scan(&got))
		if got != want {
			t.Errorf("%s is %s, want %s", name, got, want)
		}
	}
	if n := l.write.Stats().MaxOpenConnections + l.read.Stats().MaxOpenConnections; n != maxWriters+maxReaders {
		t.Errorf("up to %d connections", n)
	}
	if _, err := l.read.ExecContext(t.Context(), "DELETE FROM instances"); err == nil {
		t.Error("the connections for reading write")
	}
	// What the URL says goes before what we would say.
	l = open(t, postgrestest.URL(t)+"&application_name=mine&synchronous_commit=remote_apply")
	for name, want := range map[string]string{"synchronous_commit": "remote_apply", "application_name": "mine"} {
		var got string
		do(t, l.write.QueryRowContext(t.Context(), "SHOW "+name).Scan(&got))
		if got != want {
			t.Errorf("%s is %s, want %s", name, got, want)
		}
	}
}

// TestAServerThatCrashes: what was answered is kept, what could not be written says so, and all goes on by itself.
func TestAServerThatCrashes(t *testing.T) {
	ctx, s := t.Context(), postgrestest.Start(t)
	l := open(t, s.Database(t))
	do(t, l.Intend(ctx, intent("a")), l.Update(ctx, full("b")))
	s.Stop(t)
	for what, err := range map[string]error{
		"intend":  l.Intend(ctx, intent("c")),
		"update":  l.Update(ctx, full("c")),
		"event":   l.Event(ctx, Event{Token: "c", At: noon, Kind: "x"}),
		"abandon": l.Abandon(ctx, "a"),
	} {
		if err == nil || strings.Contains(err.Error(), postgrestest.Password) || !strings.Contains(err.Error(), l.where) {
			t.Errorf("%s without a server: %v", what, err)
		}
	}
	if _, err := l.Live(ctx); err == nil {
		t.Error("a list without a server")
	}
	s.Restart(t)
	deadline := time.Now().Add(20 * time.Second)
	for l.Intend(ctx, intent("d")) != nil {
		if time.Now().After(deadline) {
			t.Fatal("the ledger does not find its server again")
		}
	}
	if got := live(t, l); !slices.Equal(got, []string{"a", "d"}) {
		t.Errorf("live after a crash: %v", got)
	}
	equal(t, mustGet(t, l, "b"), full("b"))
}

func TestAttach(t *testing.T) {
	ctx, s := t.Context(), postgrestest.Start(t)
	url := s.Database(t)
	s.Stop(t)
	l, away, err := Attach(ctx, url)
	do(t, err)
	defer func() { do(t, l.Close()) }()
	if away == nil || strings.Contains(away.Error(), postgrestest.Password) || l.Intend(ctx, intent("a")) == nil {
		t.Errorf("a server that is away: %v", away)
	}
	s.Restart(t)
	do(t, l.Intend(ctx, intent("a")))

	for what, wrong := range map[string]string{
		"password": strings.Replace(url, postgrestest.Password, "wrong", 1),
		"database": strings.Replace(url, "/test", "/none", 1),
		"file":     "sqlite:///nowhere/at/all.db",
		"URL":      "postgres://u:secret@h:x/db",
	} {
		if got, away, err := Attach(ctx, wrong); err == nil || strings.Contains(err.Error(), "secret") {
			t.Errorf("a wrong %s: %v, %v, %v", what, got, away, err)
		}
	}
}

// TestANetworkThatSwallows: a server that takes connections and never answers holds nobody longer than the limits.
func TestANetworkThatSwallows(t *testing.T) {
	hole, err := net.Listen("tcp", "127.0.0.1:0")
	do(t, err)
	defer hole.Close()
	ctx, cancel := context.WithTimeout(t.Context(), 3*connectTimeout)
	defer cancel()
	l, away, err := Attach(ctx, "postgres://u:secret@"+hole.Addr().String()+"/db?sslmode=disable")
	do(t, err)
	defer func() { do(t, l.Close()) }()
	if away == nil || ctx.Err() != nil {
		t.Errorf("away: %v, context: %v", away, ctx.Err())
	}
}

func TestAbandon(t *testing.T) { onBoth(t, testAbandon) }

func testAbandon(t *testing.T, l *Ledger) {
	ctx := t.Context()
	do(t, l.Intend(ctx, intent("a")), l.Update(ctx, full("b")), l.Intend(ctx, intent("c")), l.Update(ctx, Instance{Token: "c", InstanceID: "pod"}))
	for _, token := range []string{"a", "a", "b", "c", "unknown"} {
		do(t, l.Abandon(ctx, token))
	}
	if got := live(t, l); !slices.Equal(got, []string{"c"}) {
		t.Errorf("live: %v", got)
	}
	if !mustGet(t, l, "a").Refused || mustGet(t, l, "c").Refused {
		t.Error("the wrong one was abandoned")
	}
	if _, err := l.Get(ctx, "unknown"); err == nil {
		t.Error("a row was made up")
	}
	equal(t, mustGet(t, l, "b"), full("b"))
}

func TestSharesAreKeptByTime(t *testing.T) { onBoth(t, testShares) }

func testShares(t *testing.T, l *Ledger) {
	ctx := t.Context()
	in := full("a")
	in.Bill = nil
	first := in
	first.Shares, first.SharesFrom = []Share{{"llama", 1000}}, nil
	do(t, l.Update(ctx, first), l.Update(ctx, in), l.Update(ctx, first))
	equal(t, mustGet(t, l, "a"), in)
	got, err := l.Unbilled(ctx, noon)
	do(t, err)
	if len(got) != 1 || got[0].Token != "a" {
		t.Errorf("unbilled: %v", got)
	}
	do(t, l.Update(ctx, full("a")))
	if got, err = l.Unbilled(ctx, noon); err != nil || len(got) != 0 {
		t.Errorf("billed and unbilled: %v, %v", got, err)
	}
}
