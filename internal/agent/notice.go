package agent

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"strings"
	"time"

	"github.com/munhq/gpuscale/internal/agentapi"
)

// noticeSource asks a metadata service for one kind of announcement.
type noticeSource interface {
	// ask returns what is announced now, nil when nothing is. It may wait for a change. Its error says that the service did
	// not answer, or not as one does.
	ask(ctx context.Context) (*agentapi.Notice, error)
	// every is the pause between two questions, and patience bounds one.
	every() time.Duration
	patience() time.Duration
}

// metadataAddress is where the three clouds have their service.
const metadataAddress = "http://169.254.169.254"

// noticeSources are those of one kind of service. One that this agent does not know has none.
func noticeSources(kind, base string, poll time.Duration) []noticeSource {
	if base == "" {
		base = metadataAddress
	}
	m := metadata{base: strings.TrimSuffix(base, "/"), client: metadataClient()}
	switch kind {
	case agentapi.NoticesAWS:
		return []noticeSource{&awsNotices{metadata: m, poll: poll}}
	case agentapi.NoticesGCP:
		return []noticeSource{&gcpNotices{metadata: m, path: gcpPreempted}, &gcpNotices{metadata: m, path: gcpMaintenance}}
	case agentapi.NoticesAzure:
		return []noticeSource{&azureNotices{metadata: m}}
	}
	return nil
}

// metadata is a service on the machine's own link.
type metadata struct {
	base   string
	client *http.Client
}

// metadataClient follows no redirect and no proxy: the service is one hop away or not there.
func metadataClient() *http.Client {
	return &http.Client{
		Transport:     &http.Transport{DialContext: (&net.Dialer{Timeout: time.Second}).DialContext, DisableKeepAlives: true},
		CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse },
	}
}

// maxMetadata bounds an answer.
const maxMetadata = 64 << 10

func (m metadata) call(ctx context.Context, method, path string, header ...string) (int, http.Header, []byte, error) {
	request, err := http.NewRequestWithContext(ctx, method, m.base+path, http.NoBody)
	if err != nil {
		return 0, nil, nil, err
	}
	for i := 0; i+1 < len(header); i += 2 {
		request.Header.Set(header[i], header[i+1])
	}
	response, err := m.client.Do(request)
	if err != nil {
		return 0, nil, nil, err
	}
	defer func() { _ = response.Body.Close() }() // Nothing is left to do for an answer that was read.
	text, err := io.ReadAll(io.LimitReader(response.Body, maxMetadata))
	return response.StatusCode, response.Header, text, err
}

var errNotMetadata = errors.New("what answers is not the metadata service")

func unexpected(path string, code int) error {
	return fmt.Errorf("%w: %s answered %d", errNotMetadata, path, code)
}

// noticeBackOffMax is how seldom a service is asked that does not answer.
const noticeBackOffMax = 10 * time.Minute

// watchNotices begins to ask for interruption notices where the boot data name a service.
func (a *Agent) watchNotices() {
	sources := noticeSources(a.cfg.Boot.Notices, a.cfg.Metadata, a.cfg.Settings.NoticePoll)
	a.notices = make([]*agentapi.Notice, len(sources))
	for i, s := range sources {
		a.work.Go(func() { a.watchNotice(i, s) })
	}
}

func (a *Agent) watchNotice(i int, s noticeSource) {
	pause := s.every()
	for {
		ctx, cancel := within(a.life, a.cfg.Clock, s.patience())
		notice, err := s.ask(ctx)
		cancel()
		if err == nil {
			pause = s.every()
			a.mu.Lock()
			a.notices[i] = notice
			a.mu.Unlock()
		}
		if a.cfg.Clock.Wait(a.life, pause) != nil {
			return
		}
		if err != nil {
			pause = min(2*pause, noticeBackOffMax)
		}
	}
}

// notice is the gravest announcement: that the machine goes, soonest first, before a hint. The agent is locked.
func (a *Agent) notice() *agentapi.Notice {
	var worst *agentapi.Notice
	for _, n := range append(a.notices, a.told) {
		if n != nil && (worst == nil || graver(n, worst)) {
			worst = n
		}
	}
	if worst == nil {
		return nil
	}
	n := *worst
	return &n
}

func graver(n, than *agentapi.Notice) bool {
	switch {
	case n.Goes() != than.Goes():
		return n.Goes()
	case n.At == nil || than.At == nil:
		return n.At == nil && than.At != nil
	}
	return n.At.Before(*than.At)
}

// Announce tells the agent of an interruption that no metadata service of its machine announces.
func (a *Agent) Announce(n agentapi.Notice) {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.told = &n
}
