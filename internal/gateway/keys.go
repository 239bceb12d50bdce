package gateway

import (
	"crypto/sha256"
	"crypto/subtle"
	"errors"
	"fmt"
	"net/http"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
)

// Key is an API key.
type Key struct {
	Secret string
	// Concurrency is how many requests for answers may be under way with it at once; 0 means any number.
	Concurrency int
}

const concurrencyOption = "concurrency="

// ParseKeys reads API keys by name from lines of the form
//
//	name=key
//	name=key concurrency=8
//
// Empty lines and those that begin with # are left out. It fails when there is no key at all. No error repeats a key.
func ParseKeys(text string) (map[string]Key, error) {
	keys := map[string]Key{}
	n := 0
	for line := range strings.Lines(text) {
		n++
		if line = strings.TrimSpace(line); line == "" || strings.HasPrefix(line, "#") {
			continue
		}
		name, rest, _ := strings.Cut(line, "=")
		name = strings.TrimSpace(name)
		fields := strings.Fields(rest)
		if _, twice := keys[name]; name == "" || len(fields) == 0 || twice {
			return nil, fmt.Errorf("line %d is not name=key, with a name that no other line has", n)
		}
		key := Key{Secret: fields[0]}
		for _, option := range fields[1:] {
			value, ok := strings.CutPrefix(option, concurrencyOption)
			limit, err := strconv.Atoi(value)
			if !ok || err != nil || limit <= 0 {
				return nil, fmt.Errorf("line %d: after the key only %s<a number above 0> may follow", n, concurrencyOption)
			}
			key.Concurrency = limit
		}
		keys[name] = key
	}
	if len(keys) == 0 {
		return nil, errors.New("there are no keys in it")
	}
	return keys, nil
}

// keyring is the API keys in force, and what is under way with each.
type keyring struct {
	current atomic.Pointer[[]keyEntry]

	mu sync.Mutex
	// uses outlive keys, so that a key whose secret changes is as busy as before. There are as many as there were names.
	uses map[string]*keyUse
}

type keyEntry struct {
	sum   [sha256.Size]byte
	limit int64
	use   *keyUse
}

type keyUse struct {
	name     string
	inFlight atomic.Int64
}

// begin counts a request unless limit are under way.
func (u *keyUse) begin(limit int64) bool {
	for {
		n := u.inFlight.Load()
		if limit > 0 && n >= limit {
			return false
		}
		if u.inFlight.CompareAndSwap(n, n+1) {
			return true
		}
	}
}

func (u *keyUse) end() { u.inFlight.Add(-1) }

func (k *keyring) set(keys map[string]Key) error {
	k.mu.Lock()
	defer k.mu.Unlock()
	list := make([]keyEntry, 0, len(keys))
	for name, key := range keys {
		secret := strings.TrimSpace(key.Secret)
		switch {
		case name == "":
			return errors.New("an API key has no name")
		case secret == "": // It would let in whoever sends none.
			return fmt.Errorf("API key %s is empty", name)
		case key.Concurrency < 0:
			return fmt.Errorf("API key %s: its concurrency is negative", name)
		}
		if k.uses[name] == nil {
			if k.uses == nil {
				k.uses = map[string]*keyUse{}
			}
			k.uses[name] = &keyUse{name: name}
		}
		list = append(list, keyEntry{sum: sha256.Sum256([]byte(secret)), limit: int64(key.Concurrency), use: k.uses[name]})
	}
	k.current.Store(&list)
	return nil
}

// each calls f with every name that there has been and what is under way with it.
func (k *keyring) each(f func(name string, inFlight int64)) {
	k.mu.Lock()
	defer k.mu.Unlock()
	for name, use := range k.uses {
		f(name, use.inFlight.Load())
	}
}

// owner is the key that r carries. It looks at every key whatever it finds, so that the time it takes says nothing about
// them.
func owner(keys []keyEntry, r *http.Request) *keyEntry {
	scheme, given, _ := strings.Cut(r.Header.Get("Authorization"), " ")
	sum := sha256.Sum256([]byte(strings.TrimSpace(given)))
	var found *keyEntry
	for i := range keys {
		if subtle.ConstantTimeCompare(sum[:], keys[i].sum[:]) == 1 {
			found = &keys[i]
		}
	}
	if !strings.EqualFold(scheme, "Bearer") {
		return nil
	}
	return found
}

// SetKeys replaces the API keys; requests under way go on and count. On an error, and without any keys, which would open
// the gateway to everybody, the ones before stay.
func (g *Gateway) SetKeys(keys map[string]Key) error {
	if len(keys) == 0 {
		return errors.New("gateway: no API keys")
	}
	if err := g.keys.set(keys); err != nil {
		return fmt.Errorf("gateway: %w", err)
	}
	return nil
}

// authorized lets requests with a key through. Those for answers count against the key's concurrency.
func (g *Gateway) authorized(next http.HandlerFunc) http.HandlerFunc {
	return func(w http.ResponseWriter, r *http.Request) {
		keys := *g.keys.current.Load()
		if len(keys) == 0 {
			next(w, r)
			return
		}
		key := owner(keys, r)
		if key == nil {
			g.metrics.rejections.WithLabelValues("", "invalid_key").Inc()
			w.Header().Set("WWW-Authenticate", "Bearer")
			write(w, badKey())
			return
		}
		recordOf(w).key = key.use.name
		if r.Method == http.MethodPost {
			if !key.use.begin(key.limit) {
				g.metrics.rejections.WithLabelValues(key.use.name, "concurrency").Inc()
				write(w, keyBusy(key.limit))
				return
			}
			defer key.use.end()
		}
		next(w, r)
	}
}
