package ledger

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/munhq/gpuscale/internal/ledger/postgrestest"
)

func TestManyWriters(t *testing.T) {
	t.Run("sqlite", func(t *testing.T) { testManyWriters(t, "sqlite://"+filepath.Join(t.TempDir(), "ledger.db")) })
	t.Run("postgres", func(t *testing.T) { testManyWriters(t, postgrestest.URL(t)) })
}

func testManyWriters(t *testing.T, file string) {
	// Two, as when a second process has the file open; each with many goroutines.
	ledgers := []*Ledger{open(t, file), open(t, file)}
	const writers, rows = 8, 6
	ctx := t.Context()
	var wg sync.WaitGroup
	for w := range writers {
		wg.Go(func() {
			l := ledgers[w%2]
			for r := range rows {
				own, shared := fmt.Sprintf("own-%d-%d", w, r), fmt.Sprintf("shared-%d", r)
				at := noon.Add(time.Duration(w) * time.Second)
				err := errors.Join(l.Intend(ctx, intent(own)), l.Intend(ctx, intent(shared)),
					l.Update(ctx, Instance{Token: shared, InstanceID: "pod", CreatedAt: &at, Rate: dollars("0.5"), RateFrom: &at}),
					l.Event(ctx, Event{Token: shared, At: at, Kind: "Seen"}))
				if err != nil {
					t.Error(err)
				}
				if _, err := l.Live(ctx); err != nil {
					t.Error(err)
				}
			}
		})
	}
	wg.Wait()
	l := ledgers[0]
	if got := live(t, l); len(got) != writers*rows+rows {
		t.Errorf("%d rows, want %d", len(got), writers*rows+rows)
	}
	for r := range rows {
		shared := fmt.Sprintf("shared-%d", r)
		in := mustGet(t, l, shared)
		events, err := l.Events(ctx, shared)
		do(t, err)
		if !in.CreatedAt.Equal(noon) || !in.RateFrom.Equal(noon.Add((writers-1)*time.Second)) || len(events) != writers {
			t.Errorf("%s, %d events", show(in), len(events))
		}
	}
}

func TestManyOpenersOfANewDatabase(t *testing.T) {
	t.Run("sqlite", func(t *testing.T) { testManyOpeners(t, "sqlite://"+filepath.Join(t.TempDir(), "ledger.db")) })
	t.Run("postgres", func(t *testing.T) { testManyOpeners(t, postgrestest.URL(t)) })
}

func testManyOpeners(t *testing.T, file string) {
	var wg sync.WaitGroup
	for range 4 {
		wg.Go(func() {
			l, err := Open(t.Context(), file)
			if err != nil {
				t.Error(err)
				return
			}
			if err := errors.Join(l.Intend(t.Context(), intent("a")), l.Close()); err != nil {
				t.Error(err)
			}
		})
	}
	wg.Wait()
}

const crashFile = "GPUSCALE_TEST_LEDGER"

// TestCrashWriter is no test: it is what TestReopenedAfterAKill runs and kills.
func TestCrashWriter(t *testing.T) {
	path := os.Getenv(crashFile)
	if path == "" {
		t.Skip("run by TestReopenedAfterAKill")
	}
	l := open(t, path)
	for i := 0; ; i++ {
		token := fmt.Sprintf("token-%d", i)
		do(t, l.Intend(context.Background(), intent(token)))
		fmt.Println("intended", token)
	}
}

func TestReopenedAfterAKill(t *testing.T) {
	t.Run("sqlite", func(t *testing.T) { testReopened(t, "sqlite://"+filepath.Join(t.TempDir(), "ledger.db")) })
	t.Run("postgres", func(t *testing.T) { testReopened(t, postgrestest.URL(t)) })
}

func testReopened(t *testing.T, file string) {
	var intended []string
	for range 3 {
		seen := killedWriter(t, file)
		intended = append(intended, seen...)
		l := open(t, file)
		got := live(t, l)
		for _, token := range intended {
			if !slices.Contains(got, token) {
				t.Errorf("%s was intended and is lost", token)
			}
		}
		do(t, l.Update(t.Context(), Instance{Token: seen[0], InstanceID: "pod"}))
	}
}

// killedWriter writes intents in another process until that is killed, and answers those that were said to be written.
func killedWriter(t *testing.T, file string) []string {
	t.Helper()
	cmd := exec.CommandContext(t.Context(), os.Args[0], "-test.run=^TestCrashWriter$")
	cmd.Env = append(os.Environ(), crashFile+"="+file)
	out, err := cmd.StdoutPipe()
	do(t, err, cmd.Start())
	var seen []string
	lines := bufio.NewScanner(out)
	for lines.Scan() {
		if token, ok := strings.CutPrefix(lines.Text(), "intended "); ok {
			seen = append(seen, token)
		}
		if len(seen) == 20 {
			do(t, cmd.Process.Kill())
		}
	}
	if err := cmd.Wait(); err == nil || len(seen) < 20 {
		t.Fatalf("the writer ended by itself after %d intents: %v", len(seen), err)
	}
	return seen
}

func TestAnIntentIsOnDiskWhenItReturns(t *testing.T) {
	l := onFile(t)
	for pragma, want := range map[string]string{"journal_mode": "wal", "synchronous": "2", "busy_timeout": "10000"} {
		var got string
		do(t, l.write.QueryRowContext(t.Context(), "PRAGMA "+pragma).Scan(&got))
		if got != want {
			t.Errorf("%s is %s, want %s", pragma, got, want)
		}
	}
	if _, err := l.read.ExecContext(t.Context(), "DELETE FROM instances"); err == nil {
		t.Error("the connections for reading write")
	}
}

func TestMigrationsDownAndUp(t *testing.T) {
	t.Run("sqlite", func(t *testing.T) {
		testMigrationsDownAndUp(t, onFile(t), `SELECT COALESCE(GROUP_CONCAT(name, ' '), '') FROM (SELECT name FROM sqlite_master
			WHERE name NOT LIKE 'sqlite_%' AND name NOT LIKE 'ledger_migrations%' ORDER BY name)`)
	})
	t.Run("postgres", func(t *testing.T) {
		testMigrationsDownAndUp(t, onPostgres(t), `SELECT COALESCE(STRING_AGG(tablename, ' ' ORDER BY tablename), '') FROM pg_tables
			WHERE schemaname = 'public' AND tablename NOT LIKE 'ledger_migrations%'`)
	})
}

func testMigrationsDownAndUp(t *testing.T, l *Ledger, list string) {
	ctx := t.Context()
	provider, end, err := l.migrator()
	do(t, err)
	defer func() { do(t, end()) }()
	tables := func() string {
		var names string
		do(t, l.write.QueryRowContext(ctx, list).Scan(&names))
		return names
	}
	before := tables()
	for _, want := range []string{"instances", "rates", "events", "shares"} {
		if !strings.Contains(before, want) {
			t.Errorf("no table %s in %q", want, before)
		}
	}
	do(t, l.Intend(ctx, intent("a")))
	for range len(provider.ListSources()) {
		_, err := provider.Down(ctx)
		do(t, err)
	}
	if left := tables(); left != "" {
		t.Errorf("left behind: %s", left)
	}
	if err := l.Intend(ctx, intent("a")); err == nil || !strings.Contains(err.Error(), l.where) {
		t.Errorf("without tables: %v", err)
	}
	_, err = provider.Up(ctx)
	do(t, err)
	if again := tables(); again != before {
		t.Errorf("up again: %q, before: %q", again, before)
	}
	do(t, l.Intend(ctx, intent("a")))
}

func TestWhatCannotBeOpened(t *testing.T) {
	dir := t.TempDir()
	text := filepath.Join(dir, "text")
	do(t, os.WriteFile(text, []byte(strings.Repeat("this is no database\n", 100)), 0o600))
	for address, want := range map[string]string{
		"sqlite://" + dir + "/none/ledger.db":             dir + "/none/ledger.db",
		"sqlite://" + dir:                                 dir,
		"sqlite://" + text:                                text,
		"sqlite://" + text + "/ledger.db":                 text + "/ledger.db",
		"sqlite://" + dir + "/a.db?mode=ro":               "no options",
		"sqlite://":                                       "no file",
		"sqlite:ledger.db":                                "no file",
		"postgres://u:secret@127.0.0.1:1/db":              "127.0.0.1:1/db",
		"postgresql://u:secret@127.0.0.1:1/x":             "127.0.0.1:1/x",
		"postgres://u:secret@h:port/db":                   "cannot be read",
		"postgres://u:sec%ret@h/db":                       "cannot be read",
		"postgres://u:secret@h/db?sslmode=x":              "cannot be read",
		"postgres://u:secret@h/db?synchronous_commit=off": "synchronous_commit",
		"mysql://u:secret@h/db":                           "mysql",
		"host=h password=secret":                          "not a URL",
		"":                                                "not a URL",
	} {
		l, err := Open(t.Context(), address)
		if err == nil {
			t.Errorf("%s was opened as %s", address, l.where)
			continue
		}
		if !strings.Contains(err.Error(), want) || strings.Contains(err.Error(), "secret") {
			t.Errorf("%s: %v; want %q in it", address, err, want)
		}
	}
}

func TestAFileThatMayOnlyBeReadIsNamed(t *testing.T) {
	if os.Geteuid() == 0 {
		t.Skip("root may write everything")
	}
	path := filepath.Join(t.TempDir(), "ledger.db")
	l, err := Open(t.Context(), "sqlite://"+path)
	do(t, err, l.Close(), os.Chmod(path, 0o400))
	if l, err = Open(t.Context(), "sqlite://"+path); err == nil {
		t.Fatal("opened ", l.where)
	}
	if !strings.Contains(err.Error(), path) || !strings.Contains(err.Error(), "readonly") {
		t.Error(err)
	}
}

func TestPathsAreTakenLiterally(t *testing.T) {
	dir := t.TempDir()
	t.Chdir(dir)
	for address, want := range map[string]string{
		"sqlite://relative.db":         "relative.db",
		"sqlite://" + dir + "/a b#%41": "a b#%41",
	} {
		do(t, open(t, address).Intend(t.Context(), intent("a")))
		if _, err := os.Stat(filepath.Join(dir, want)); err != nil {
			t.Error(err)
		}
	}
}

func TestCancelledWritesDoNotHoldTheLedger(t *testing.T) { onBoth(t, testCancelledWrites) }

func testCancelledWrites(t *testing.T, l *Ledger) {
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if err := l.Intend(ctx, intent("a")); !errors.Is(err, context.Canceled) {
		t.Errorf("with a cancelled context: %v", err)
	}
	do(t, l.Intend(t.Context(), intent("a")))
}
