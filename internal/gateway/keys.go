package gateway

import (
	"crypto/sha256"
	"crypto/subtle"
	"errors"
	"fmt"
	"net/http"
	"strings"
)

// keyring has the hashes of the API keys by name.
type keyring map[string][sha256.Size]byte

func newKeyring(keys map[string]string) (keyring, error) {
	ring := make(keyring, len(keys))
	for name, key := range keys {
		if name == "" {
			return nil, errors.New("an API key has no name")
		}
		// An empty key would let in whoever sends none.
		if strings.TrimSpace(key) == "" {
			return nil, fmt.Errorf("API key %s is empty", name)
		}
		ring[name] = sha256.Sum256([]byte(strings.TrimSpace(key)))
	}
	return ring, nil
}

// owner is the name of the key that r carries. It looks at every key whatever it finds, so that the time it takes says
// nothing about them.
func (k keyring) owner(r *http.Request) (string, bool) {
	scheme, given, _ := strings.Cut(r.Header.Get("Authorization"), " ")
	sum := sha256.Sum256([]byte(strings.TrimSpace(given)))
	var (
		owner string
		found bool
	)
	for name, want := range k {
		if subtle.ConstantTimeCompare(sum[:], want[:]) == 1 {
			owner, found = name, true
		}
	}
	return owner, found && strings.EqualFold(scheme, "Bearer")
}

func (g *Gateway) authorized(next http.HandlerFunc) http.HandlerFunc {
	if len(g.keys) == 0 {
		return next
	}
	return func(w http.ResponseWriter, r *http.Request) {
		owner, ok := g.keys.owner(r)
		if !ok {
			w.Header().Set("WWW-Authenticate", "Bearer")
			write(w, badKey())
			return
		}
		recordOf(w).key = owner
		next(w, r)
	}
}
