package agent

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/url"
	"os/exec"
	"regexp"
	"strings"
	"time"

	"github.com/munhq/gpuscale/internal/agentapi"
)

// ender ends the rental of the machine that it runs on. An error that is errNotEnded says that nothing was ended; any
// other that it may have been.
type ender interface {
	end(ctx context.Context) error
}

var errNotEnded = errors.New("not ended")

// Where a provider tells its instances who they are and what opens their own rental, and where its API is.
const (
	envVastID    = "CONTAINER_ID"
	envVastKey   = "CONTAINER_API_KEY"
	envRunPodID  = "RUNPOD_POD_ID"
	envRunPodKey = "RUNPOD_API_KEY"

	vastURL   = "https://console.vast.ai"
	runPodURL = "https://api.runpod.io"
)

// instanceName is how the two providers spell theirs. It goes into a URL.
var instanceName = regexp.MustCompile(`^[A-Za-z0-9]{1,64}$`)

// newEnder says why the machine cannot end its own rental where it cannot.
func newEnder(how agentapi.SelfEnd, cfg Config) (ender, error) {
	switch how.By {
	case agentapi.SelfEndVastAI:
		return newDeleter(cfg.Getenv, envVastID, envVastKey, cmp.Or(how.URL, vastURL)+"/api/v0/instances/%s/")
	case agentapi.SelfEndRunPod:
		return newDeleter(cfg.Getenv, envRunPodID, envRunPodKey, cmp.Or(how.URL, runPodURL)+"/v2/pods/%s")
	case agentapi.SelfEndPowerOff:
		return cfg.PowerOff, nil
	}
	return nil, fmt.Errorf("this agent does not know how to end a rental by %q", how.By)
}

// deleter asks a provider's API to delete this instance, with a key that opens nothing else.
type deleter struct {
	url, key string
	client   *http.Client
}

func newDeleter(getenv func(string) string, id, key, pattern string) (ender, error) {
	name, secret := strings.TrimPrefix(strings.TrimSpace(getenv(id)), "C."), strings.TrimSpace(getenv(key))
	switch {
	case name == "" || secret == "":
		return nil, fmt.Errorf("the provider has not set %s and %s in this container, without which it cannot end its own rental", id, key)
	case !instanceName.MatchString(name):
		return nil, fmt.Errorf("%s is no instance's name", id)
	}
	return &deleter{url: fmt.Sprintf(pattern, url.PathEscape(name)), key: secret, client: &http.Client{
		Transport: &http.Transport{Proxy: http.ProxyFromEnvironment, DisableKeepAlives: true,
			DialContext: (&net.Dialer{Timeout: 10 * time.Second}).DialContext},
		// A redirect would carry the key elsewhere.
		CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse },
	}}, nil
}

// end sends one DELETE.
func (d *deleter) end(ctx context.Context) error {
	request, err := http.NewRequestWithContext(ctx, http.MethodDelete, d.url, http.NoBody)
	if err != nil {
		return fmt.Errorf("%w: %w", errNotEnded, err)
	}
	request.Header.Set("Authorization", "Bearer "+d.key)
	request.Header.Set("User-Agent", "gpuscale-agent")
	response, err := d.client.Do(request)
	var op *net.OpError
	switch {
	case errors.As(err, &op) && op.Op == "dial":
		return fmt.Errorf("%w: %w", errNotEnded, err)
	case err != nil:
		return err
	}
	defer func() { _ = response.Body.Close() }() // Nothing is left to do for an answer that was read.
	text, _ := io.ReadAll(io.LimitReader(response.Body, 4<<10))
	return d.meaning(response.StatusCode, text)
}

// meaning of an answer. An instance that is not found is as good as ended, but at Vast.ai a bad key is not found either
// (auth_error), and a failure can come with status 200.
func (d *deleter) meaning(code int, text []byte) error {
	var said struct {
		Success *bool  `json:"success"`
		Error   string `json:"error"`
	}
	_ = json.Unmarshal(text, &said) // Another provider's answer has none of these.
	failed := said.Success != nil && !*said.Success
	answer := fmt.Errorf("the provider answered %d %s", code, shorten(strings.ReplaceAll(string(text), d.key, "…"), 200))
	switch {
	case code/100 == 2 && !failed:
		return nil
	case code == http.StatusNotFound && said.Error != "auth_error" && !strings.Contains(string(text), "Invalid user key"):
		return nil
	case code/100 == 5:
		return answer
	}
	return fmt.Errorf("%w: %w", errNotEnded, answer)
}

// PowerOff ends the rental of a machine by turning it off.
type PowerOff func(ctx context.Context) error

func (p PowerOff) end(ctx context.Context) error {
	err := p(ctx)
	if err == nil || ctx.Err() != nil { // It may be going down already.
		return err
	}
	return fmt.Errorf("%w: power-off: %w", errNotEnded, err)
}

// HostPowerOff asks the machine's init to power it off, which needs root.
func HostPowerOff(ctx context.Context) error {
	var errs []error
	for _, words := range [][]string{{"systemctl", "poweroff"}, {"shutdown", "-h", "now"}, {"poweroff"}} {
		out, err := exec.CommandContext(ctx, words[0], words[1:]...).CombinedOutput()
		if err == nil {
			return nil
		}
		errs = append(errs, fmt.Errorf("%s: %w %s", words[0], err, shorten(strings.TrimSpace(string(out)), 100)))
	}
	return errors.Join(errs...)
}
