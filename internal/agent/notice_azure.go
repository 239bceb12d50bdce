package agent

import (
	"context"
	"encoding/json"
	"net/http"
	"slices"
	"strings"
	"time"

	"github.com/munhq/gpuscale/internal/agentapi"
)

// azureNotices reads Azure's Scheduled Events. The first question turns the service on, which can take two minutes, and a
// day without questions turns it off.
type azureNotices struct {
	metadata
	name string
}

const (
	azureEvents = "/metadata/scheduledevents?api-version=2020-07-01"
	azureName   = "/metadata/instance/compute/name?api-version=2021-02-01&format=text"
)

// azureKinds are the events after which the machine is gone or has lost what its GPUs held. A Freeze lasts seconds.
var azureKinds = map[string]string{
	"Preempt": agentapi.NoticeInterrupted, "Terminate": agentapi.NoticeInterrupted,
	"Reboot": agentapi.NoticeMaintenance, "Redeploy": agentapi.NoticeMaintenance,
}

func (*azureNotices) every() time.Duration    { return time.Second }
func (*azureNotices) patience() time.Duration { return 150 * time.Second }

func (s *azureNotices) ask(ctx context.Context) (*agentapi.Notice, error) {
	code, _, text, err := s.call(ctx, http.MethodGet, azureEvents, "Metadata", "true")
	if err != nil {
		return nil, err
	}
	var document struct {
		DocumentIncarnation *int64
		Events              []azureEvent
	}
	if code != http.StatusOK || json.Unmarshal(text, &document) != nil || document.DocumentIncarnation == nil {
		return nil, unexpected(azureEvents, code)
	}
	var worst *agentapi.Notice
	for _, e := range document.Events {
		if n := e.notice(); n != nil && s.mine(ctx, e) && (worst == nil || graver(n, worst)) {
			worst = n
		}
	}
	return worst, nil
}

type azureEvent struct {
	EventType, EventStatus, NotBefore string
	Resources                         []string
}

func (e azureEvent) notice() *agentapi.Notice {
	kind := azureKinds[e.EventType]
	if kind == "" || e.EventStatus != "Scheduled" && e.EventStatus != "Started" {
		return nil
	}
	n := &agentapi.Notice{Kind: kind, Message: "Azure: " + e.EventType}
	if at, err := http.ParseTime(e.NotBefore); err == nil && e.EventStatus == "Scheduled" {
		n.At = &at
	}
	return n
}

// mine reports whether the event is about this machine, which it is where that cannot be told.
func (s *azureNotices) mine(ctx context.Context, e azureEvent) bool {
	if s.name == "" {
		if code, _, text, err := s.call(ctx, http.MethodGet, azureName, "Metadata", "true"); err == nil && code == http.StatusOK {
			s.name = strings.TrimSpace(string(text))
		}
	}
	return s.name == "" || len(e.Resources) == 0 ||
		slices.ContainsFunc(e.Resources, func(r string) bool { return strings.EqualFold(r, s.name) })
}
