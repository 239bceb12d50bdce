package vastai

import (
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"net/http"
	"strconv"
	"strings"
	"time"

	"github.com/munhq/gpuscale/internal/cloudsim/market"
)

func (s *Server) destroy(w http.ResponseWriter, r *http.Request, c caller) {
	id, ok := s.instanceID(w, r)
	if !ok {
		return
	}
	if err := s.market.Destroy(c.account, id, c.by()); err != nil {
		s.refused(w, id, err)
		return
	}
	success(w)
}

// manage stops, starts or renames.
func (s *Server) manage(w http.ResponseWriter, r *http.Request, c caller) {
	id, ok := s.instanceID(w, r)
	if !ok {
		return
	}
	raw, err := readObject(w, r)
	if err != nil || len(raw) == 0 {
		s.fail(w, http.StatusBadRequest, "invalid_args", "state or label is required")
		return
	}
	for _, key := range sortedKeys(raw) {
		value, isText := raw[key].(string)
		switch {
		case !isText:
			s.fail(w, http.StatusBadRequest, "invalid_args", key+" must be a string")
			return
		case key == "label" && c.instance != "":
			s.fail(w, http.StatusForbidden, "not_authorized", "This key may only start, stop or destroy its instance")
			return
		case key == "label" && len(value) <= 1024:
			err = s.market.SetLabel(c.account, id, value)
		case key == "state" && value == "stopped":
			err = s.market.Stop(c.account, id)
		case key == "state" && value == "running":
			err = s.market.Start(c.account, id)
		default:
			s.fail(w, http.StatusBadRequest, "invalid_args", "invalid "+key)
			return
		}
		if err != nil {
			s.refused(w, id, err)
			return
		}
	}
	success(w)
}

func (s *Server) reboot(w http.ResponseWriter, r *http.Request, c caller) {
	id, ok := s.instanceID(w, r)
	if !ok {
		return
	}
	if err := s.market.Reboot(c.account, id); err != nil {
		s.refused(w, id, err)
		return
	}
	success(w)
}

const maxBidPerGPU = 32

func (s *Server) changeBid(w http.ResponseWriter, r *http.Request, c caller) {
	id, ok := s.instanceID(w, r)
	if !ok {
		return
	}
	raw, err := readObject(w, r)
	price, isNumber := raw["price"].(float64)
	if err != nil || !isNumber || raw["client_id"] != "me" || len(raw) != 2 {
		s.fail(w, http.StatusBadRequest, "invalid_args", "client_id and price are required")
		return
	}
	in, err := s.market.Get(c.account, id)
	if err != nil {
		s.refused(w, id, err)
		return
	}
	if price < minPrice || price > maxBidPerGPU*float64(in.Offer.GPUs) {
		s.fail(w, http.StatusBadRequest, "invalid_args", "Please set a bid price >= 0.001.")
		return
	}
	if err := s.market.SetBid(c.account, id, market.USD(price)); err != nil {
		s.refused(w, id, err)
		return
	}
	success(w)
}

// logFile is output that was asked for, at an address of its own, some time later.
type logFile struct {
	from time.Time
	text []byte
}

func (s *Server) requestLogs(w http.ResponseWriter, r *http.Request, c caller) {
	id, ok := s.instanceID(w, r)
	if !ok {
		return
	}
	raw, err := readObject(w, r)
	if err != nil {
		s.fail(w, http.StatusBadRequest, "invalid_args", "Invalid json body")
		return
	}
	tail := 1000
	if v, given := raw["tail"]; given {
		text, _ := v.(string)
		if tail, err = strconv.Atoi(text); err != nil || tail < 0 {
			s.fail(w, http.StatusBadRequest, "invalid_args", "tail must be a string of digits")
			return
		}
	}
	out, err := s.market.Logs(c.account, id, tail)
	if err != nil {
		s.fail(w, http.StatusNotFound, "invalid_id", "Invalid instance id.")
		return
	}
	if grep, _ := raw["filter"].(string); grep != "" {
		out = filterLines(out, grep)
	}
	now := s.market.Clock().Now()
	sum := sha256.Sum256(fmt.Appendf(nil, "%d %s %d", s.market.Seed(), id, now.UnixNano()))
	name := hex.EncodeToString(sum[:16]) + ".log"
	s.mu.Lock()
	s.logs[name] = logFile{from: now.Add(s.opts.LogDelay), text: out}
	s.mu.Unlock()
	scheme := "http"
	if r.TLS != nil {
		scheme = "https"
	}
	reply(w, http.StatusOK, object{"success": true, "result_url": scheme + "://" + r.Host + "/instance_logs/" + name,
		"msg": "success"})
}

func filterLines(out []byte, grep string) []byte {
	var kept strings.Builder
	for line := range strings.Lines(string(out)) {
		if strings.Contains(line, grep) {
			kept.WriteString(line)
		}
	}
	return []byte(kept.String())
}

// serveLog stands for the object store: no key is asked for, and a file that is not there yet is not found.
func (s *Server) serveLog(w http.ResponseWriter, r *http.Request) {
	s.mu.Lock()
	f, ok := s.logs[r.PathValue("name")]
	s.mu.Unlock()
	if !ok || s.market.Clock().Now().Before(f.from) {
		http.Error(w, "<Error><Code>NoSuchKey</Code></Error>", http.StatusNotFound)
		return
	}
	w.Header().Set("Content-Type", "text/plain")
	_, _ = w.Write(f.text) // A client that has left is its own affair.
}
