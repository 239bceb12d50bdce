package verda

import (
	"crypto/rand"
	"encoding/hex"
	"net/http"
	"slices"
	"strconv"

	"golang.org/x/crypto/ssh"
)

type script struct{ ID, Name, Text string }

type sshKey struct{ ID, Name, Key string }

const (
	// scriptQuota is the default one.
	scriptQuota = 100
	// scriptLimit is ours: the vendor's is not known.
	scriptLimit = 64 << 10
)

// newID is a UUID.
func newID() string {
	b := make([]byte, 16)
	_, _ = rand.Read(b) // It never fails.
	h := hex.EncodeToString(b)
	return h[:8] + "-" + h[8:12] + "-4" + h[13:16] + "-a" + h[17:20] + "-" + h[20:]
}

func (s *Server) addScript(w http.ResponseWriter, r *http.Request) {
	var in struct {
		Name   string `json:"name"`
		Script string `json:"script"`
	}
	if !read(w, r, &in) {
		return
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	switch {
	case in.Name == "" || in.Script == "" || len(in.Script) > scriptLimit:
		invalid(w, "name and script are required")
	case len(s.scripts) >= scriptQuota:
		invalid(w, "Startup script limit exceeded")
	default:
		id := newID()
		s.scripts[id] = script{id, in.Name, in.Script}
		s.created(w, http.StatusCreated, id)
	}
}

func (s *Server) listScripts(w http.ResponseWriter, r *http.Request) {
	page, size := max(1, number(r, "page", 1)), min(100, max(1, number(r, "pageSize", 100)))
	s.mu.Lock()
	defer s.mu.Unlock()
	var ids []string
	for id := range s.scripts {
		ids = append(ids, id)
	}
	slices.Sort(ids)
	out := []object{}
	for i, id := range ids {
		if i/size == page-1 {
			out = append(out, object{"id": id, "name": s.scripts[id].Name, "script": s.scripts[id].Text})
		}
	}
	w.Header().Set("X-Page", strconv.Itoa(page))
	w.Header().Set("X-Page-Size", strconv.Itoa(size))
	w.Header().Set("X-Total-Count", strconv.Itoa(len(ids)))
	reply(w, http.StatusOK, out)
}

func number(r *http.Request, name string, otherwise int) int {
	n, err := strconv.Atoi(r.URL.Query().Get(name))
	if err != nil {
		return otherwise
	}
	return n
}

// getScript answers with a list of one.
func (s *Server) getScript(w http.ResponseWriter, r *http.Request) {
	s.mu.Lock()
	defer s.mu.Unlock()
	found, ok := s.scripts[r.PathValue("id")]
	if !ok {
		fail(w, http.StatusNotFound, "not_found", "Invalid script id")
		return
	}
	reply(w, http.StatusOK, []object{{"id": found.ID, "name": found.Name, "script": found.Text}})
}

func (s *Server) removeScript(w http.ResponseWriter, r *http.Request) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if _, ok := s.scripts[r.PathValue("id")]; !ok {
		fail(w, http.StatusNotFound, "not_found", "Invalid script id")
		return
	}
	delete(s.scripts, r.PathValue("id"))
	w.WriteHeader(http.StatusOK)
}

func (s *Server) addKey(w http.ResponseWriter, r *http.Request) {
	var in struct {
		Name string `json:"name"`
		Key  string `json:"key"`
	}
	if !read(w, r, &in) {
		return
	}
	if _, _, _, _, err := ssh.ParseAuthorizedKey([]byte(in.Key)); in.Name == "" || err != nil {
		invalid(w, "Invalid SSH key")
		return
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	id := newID()
	s.keys[id] = sshKey{id, in.Name, in.Key}
	s.created(w, http.StatusCreated, id)
}

func (s *Server) listKeys(w http.ResponseWriter, _ *http.Request) {
	s.mu.Lock()
	defer s.mu.Unlock()
	out := []object{}
	for _, k := range s.keys {
		out = append(out, object{"id": k.ID, "name": k.Name, "key": k.Key})
	}
	reply(w, http.StatusOK, out)
}
