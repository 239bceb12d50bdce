package librarylog_test

import (
	"io"
	"slices"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/munhq/gpuscale/internal/librarylog"
)

// writes remembers each write.
type writes struct {
	mu  sync.Mutex
	all []string
}

func (w *writes) Write(p []byte) (int, error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.all = append(w.all, string(p))
	return len(p), nil
}

func (w *writes) so() []string {
	w.mu.Lock()
	defer w.mu.Unlock()
	return slices.Clone(w.all)
}

func TestLinesAreWrittenTogether(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var to writes
		g := librarylog.Gather(&to)
		say := func(lines ...string) {
			for _, line := range lines {
				if n, err := io.WriteString(g, line); n != len(line) || err != nil {
					t.Fatal(n, err)
				}
			}
		}
		expect := func(when string, want ...string) {
			t.Helper()
			synctest.Wait()
			if got := to.so(); !slices.Equal(got, want) {
				t.Fatalf("%s: %q", when, got)
			}
		}
		say("a\n", "b\n")
		expect("at once")
		time.Sleep(50 * time.Millisecond)
		expect("after the time", "a\nb\n")
		time.Sleep(time.Hour)
		say("c\n")
		time.Sleep(49 * time.Millisecond)
		expect("before the time", "a\nb\n")
		time.Sleep(time.Millisecond)
		expect("after a quiet hour", "a\nb\n", "c\n")
		say("d\n")
		g.Close()
		expect("at the end", "a\nb\n", "c\n", "d\n")
		say("e\n")
		expect("after the end", "a\nb\n", "c\n", "d\n", "e\n")
	})
}

func TestManyLinesDoNotWait(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var to writes
		g := librarylog.Gather(&to)
		line := string(make([]byte, 1<<10))
		for range 64 {
			if _, err := io.WriteString(g, line); err != nil {
				t.Fatal(err)
			}
		}
		if got := to.so(); len(got) != 1 || len(got[0]) != 64<<10 {
			t.Errorf("%d writes", len(got))
		}
		g.Close()
	})
}
