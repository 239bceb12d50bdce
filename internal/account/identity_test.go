package account

import (
	"context"
	"errors"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/munhq/gpuscale/pkg/provider"
)

// identified is a driver that can tell its account.
type identified struct {
	*fakeDriver
	asked atomic.Int32
	tell  func(ctx context.Context) (string, error)
}

func (d *identified) AccountID(ctx context.Context) (string, error) {
	d.asked.Add(1)
	return d.tell(ctx)
}

func TestIdentityIsRemembered(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		life, end := context.WithCancel(t.Context())
		defer end()
		down := provider.Errorf(provider.VastAI, "check", provider.Unavailable, "down")
		id, err := "", error(down)
		d := &identified{fakeDriver: &fakeDriver{}}
		d.tell = func(context.Context) (string, error) { return id, err }
		w := &world{}
		acc := newAccount(life, provider.VastAI, "f", d, w.options())
		want := func(wantID string, wantErr error, asked int32) {
			t.Helper()
			if got, err := acc.Identity(t.Context()); got != wantID || !errors.Is(err, wantErr) || d.asked.Load() != asked {
				t.Errorf("%q, %v after %d questions; want %q, %v after %d", got, err, d.asked.Load(), wantID, wantErr, asked)
			}
		}
		want("", down, 1)
		want("", down, 1)
		time.Sleep(identityRetry)
		err = nil
		want("", nil, 2) // the key may not tell
		id = "10001"
		time.Sleep(checkEvery - time.Second)
		want("", nil, 2)
		time.Sleep(time.Second)
		want("10001", nil, 3) // it may now
		id = "20002"
		time.Sleep(24 * time.Hour)
		want("10001", nil, 3)
	})
}

func TestIdentityOfAProviderThatCannotTell(t *testing.T) {
	acc := newAccount(t.Context(), provider.VastAI, "f", &fakeDriver{}, (&world{}).options())
	if id, err := acc.Identity(t.Context()); id != "" || err != nil {
		t.Errorf("%q, %v", id, err)
	}
}

func TestAHastyQuestionIsNotRemembered(t *testing.T) {
	d := &identified{fakeDriver: &fakeDriver{}, tell: func(ctx context.Context) (string, error) { <-ctx.Done(); return "", ctx.Err() }}
	acc := newAccount(t.Context(), provider.VastAI, "f", d, (&world{}).options())
	ctx, cancel := context.WithTimeout(t.Context(), time.Millisecond)
	defer cancel()
	if _, err := acc.Identity(ctx); provider.KindOf(err) != provider.Unavailable {
		t.Error(err)
	}
	d.tell = func(context.Context) (string, error) { return "7", nil }
	if id, err := acc.Identity(t.Context()); id != "7" || err != nil {
		t.Errorf("%q, %v", id, err)
	}
}

// telling is a world whose accounts are told by what follows the @ of their keys; one without cannot be told, and one
// that reads "down" does not answer.
func telling(t *testing.T, secrets map[string]map[string][]byte) (*world, *Accounts) {
	t.Helper()
	w := &world{secrets: secrets, env: map[string]string{}}
	o := w.options()
	o.Constructors[provider.VastAI] = Constructor{Env: []string{"VASTAI_API_KEY"}, New: func(creds map[string]string) (provider.Provider, error) {
		_, whose, _ := strings.Cut(creds["VASTAI_API_KEY"], "@")
		return &identified{fakeDriver: &fakeDriver{creds: creds}, tell: func(context.Context) (string, error) {
			if whose == "down" {
				return "", provider.Errorf(provider.VastAI, "check", provider.Unavailable, "down")
			}
			return whose, nil
		}}, nil
	}}
	return w, New(t.Context(), o)
}

func TestHolder(t *testing.T) {
	for name, c := range map[string]struct {
		// earlier is what the Secret held before, in this process; now is what it holds, nothing where empty.
		earlier, now, elsewhere string
		identity                string
		// key is the one that is found, says part of the error where none is.
		key, says string
	}{
		"the very key":                     {now: "k@1", identity: "1", key: "k@1"},
		"rotated within the account":       {earlier: "k@1", now: "l@1", identity: "1", key: "l@1"},
		"another account's":                {now: "k@2", identity: "1", says: "account 1 is needed; Secret ns/s has a key of account 2"},
		"another's, the old one is open":   {earlier: "k@1", now: "l@2", identity: "1", key: "k@1"},
		"another's, the account elsewhere": {now: "l@2", elsewhere: "m@1", identity: "1", key: "m@1"},
		"a key that may not tell":          {now: "k", identity: "1", says: "account 1 is needed; Secret ns/s has a key that has no right to say"},
		"nobody answers":                   {now: "k@down", identity: "1", says: "cannot be read"},
		"gone, the old one is open":        {earlier: "k@1", identity: "1", key: "k@1"},
		"gone, another's is open":          {earlier: "k@2", identity: "1", says: "account 1 is needed"},
		"gone, the account elsewhere":      {elsewhere: "m@1", identity: "1", key: "m@1"},
		"gone":                             {identity: "1", says: "does not exist"},
		"never told, another's":            {now: "k@2", key: "k@2"},
		"never told, gone, one is open":    {earlier: "k@2", key: "k@2"},
		"never told, gone":                 {elsewhere: "m@1", says: "does not exist"},
	} {
		t.Run(name, func(t *testing.T) {
			w, a := telling(t, map[string]map[string][]byte{})
			put := func(secret, key string) {
				if key != "" {
					w.secrets[secret] = map[string][]byte{"VASTAI_API_KEY": []byte(key)}
				}
			}
			if put("ns/s", c.earlier); c.earlier != "" {
				mustFor(t, a, vast("s"))
			}
			delete(w.secrets, "ns/s")
			put("ns/s", c.now)
			if put("ns/other", c.elsewhere); c.elsewhere != "" {
				mustFor(t, a, vast("other"))
			}
			acc, err := a.Holder(t.Context(), vast("s"), c.identity)
			if (err == nil) != (c.key != "") || err != nil && !strings.Contains(err.Error(), c.says) {
				t.Fatalf("%v; want key %q or %q", err, c.key, c.says)
			}
			if err == nil && acc.Driver.(*identified).creds["VASTAI_API_KEY"] != c.key {
				t.Errorf("found %v, want %s", acc.Driver.(*identified).creds, c.key)
			}
		})
	}
}
