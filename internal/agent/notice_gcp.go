package agent

import (
	"context"
	"net/http"
	"net/url"
	"strings"
	"time"

	"github.com/munhq/gpuscale/internal/agentapi"
)

// gcpNotices follows one value of Compute Engine's metadata. The first question is answered at once, later ones when the
// value changes or a minute is over.
type gcpNotices struct {
	metadata
	path string
	etag string
}

const (
	gcpPreempted   = "/computeMetadata/v1/instance/preempted"
	gcpMaintenance = "/computeMetadata/v1/instance/maintenance-event"
	gcpWait        = "60"
)

func (*gcpNotices) every() time.Duration    { return time.Second }
func (*gcpNotices) patience() time.Duration { return 75 * time.Second }

func (s *gcpNotices) ask(ctx context.Context) (*agentapi.Notice, error) {
	path := s.path
	if s.etag != "" {
		path += "?" + url.Values{"wait_for_change": {"true"}, "last_etag": {s.etag}, "timeout_sec": {gcpWait}}.Encode()
	}
	code, header, text, err := s.call(ctx, http.MethodGet, path, "Metadata-Flavor", "Google")
	if err != nil {
		s.etag = "" // The change may have come meanwhile: ask without waiting.
		return nil, err
	}
	if code != http.StatusOK || header.Get("Metadata-Flavor") != "Google" {
		s.etag = ""
		return nil, unexpected(s.path, code)
	}
	s.etag = header.Get("Etag")
	switch strings.TrimSpace(string(text)) {
	case "TRUE":
		return &agentapi.Notice{Kind: agentapi.NoticeInterrupted, Message: "Compute Engine: preempted"}, nil
	case "TERMINATE_ON_HOST_MAINTENANCE":
		return &agentapi.Notice{Kind: agentapi.NoticeMaintenance, Message: "Compute Engine: terminates for host maintenance"}, nil
	}
	return nil, nil //nolint:nilnil // Nothing is announced.
}
