package vastai_test

import (
	"bytes"
	"context"
	"errors"
	"io"
	"net/http"
	"regexp"
	"slices"
	"sync"
	"testing"
	"time"

	sim "github.com/munhq/gpuscale/internal/cloudsim/vastai"
	"github.com/munhq/gpuscale/pkg/provider"
	"github.com/munhq/gpuscale/pkg/provider/providertest"
)

// brokenBelieving are drivers that believe what a cloud says.
func brokenBelieving() []brokenDriver {
	return []brokenDriver{
		{"an accepted destroy is done", "ADestroyThatIsNotDone ADestroyThatTakesTime", believing(&sync.Map{})},
		{"an error has no instance", "SuccessInAnErrorIsNoRefusal", errorsTwisted(func(e *provider.Error) {
			if e.Op == "create" {
				e.Kind, e.InstanceID = provider.NoCapacity, ""
			}
		})},
		{"a refused destroy is as good as done", "ADestroyThatIsRefused AFailureIn200IsAFailure", destroyTwisted(
			func(ctx context.Context, p provider.Provider, id string) error {
				_ = p.DestroyInstance(ctx, id) // the fault of this driver
				return nil
			})},
		{"an instance that is not ready for its end is none", "ADestroyThatIsRefused",
			kindTwisted(provider.Unknown, provider.NotFound, "destroy")},
		{"an endpoint as soon as there is an instance", "RunningBeforeItsPorts RunningWithoutARuntime",
			readsTwisted(func(i *provider.Instance) {
				if i.Port == 0 {
					i.Address, i.Port = "203.0.113.1", 9443
				}
			})},
		{"what has no endpoint has failed", "RunningBeforeItsPorts RunningWithoutARuntime",
			readsTwisted(func(i *provider.Instance) {
				if i.Port == 0 {
					i.State = provider.StateFailed
				}
			})},
		{"an unreachable host has ended", "AnUnreachableHostIsLost", readsTwisted(func(i *provider.Instance) {
			if i.State == provider.StateLost {
				i.State = provider.StateStopped
			}
		})},
		{"whatever is away was taken", "AnUnreachableHostIsLost", readsTwisted(func(i *provider.Instance) {
			i.Interrupted = i.Interrupted || i.State == provider.StateLost
		})},
		{"what is gone has stopped", "ADeletionByTheOwnerIsGone", func(p provider.Provider) broken {
			return broken{Provider: p, get: func(ctx context.Context, id string) (provider.Instance, error) {
				inst, err := p.GetInstance(ctx, id)
				if provider.KindOf(err) == provider.NotFound {
					return provider.Instance{Provider: p.Name(), ID: id, State: provider.StateStopped}, nil
				}
				return inst, err
			}}
		}},
		{"knows better than the vendor how long to wait", "RetryAfterIsPassedOn",
			errorsTwisted(func(e *provider.Error) { e.RetryAfter = min(e.RetryAfter, 5*time.Second) })},
		{"has no patience to lose", "AnAnswerThatIsTooSlow", func(p provider.Provider) broken {
			return broken{Provider: p, create: func(ctx context.Context, r provider.CreateRequest) (provider.Instance, error) {
				inst, err := p.CreateInstance(ctx, r)
				var e *provider.Error
				if errors.As(err, &e) && e.Err != nil {
					return provider.Instance{}, provider.Errorf(p.Name(), e.Op, provider.NoCapacity, "timed out")
				}
				return inst, err
			}}
		}},
	}
}

// believing shows no instance any more whose destroy was accepted. The drivers of one harness share what they believe.
func believing(gone *sync.Map) breakage {
	type ended struct {
		by provider.Provider
		id string
	}
	return func(p provider.Provider) broken {
		isGone := func(id string) bool {
			_, is := gone.Load(ended{p, id})
			return is
		}
		return broken{
			Provider: p,
			destroy: func(ctx context.Context, id string) error {
				err := p.DestroyInstance(ctx, id)
				if err == nil {
					gone.Store(ended{p, id}, true)
				}
				return err
			},
			get: func(ctx context.Context, id string) (provider.Instance, error) {
				if isGone(id) {
					return provider.Instance{}, provider.Errorf(p.Name(), "get", provider.NotFound, "destroyed")
				}
				return p.GetInstance(ctx, id)
			},
			list: func(ctx context.Context, f provider.InstanceFilter) ([]provider.Instance, error) {
				all, err := p.ListInstances(ctx, f)
				return slices.DeleteFunc(all, func(i provider.Instance) bool { return isGone(i.ID) }), err
			},
		}
	}
}

// misread is a driver that reads one form of a figure as another: what it gets is changed before it reads it.
type misread struct {
	next http.RoundTripper
	form *regexp.Regexp
	as   string
}

// RoundTrip changes every answer.
func (m misread) RoundTrip(r *http.Request) (*http.Response, error) {
	resp, err := m.next.RoundTrip(r)
	if err != nil {
		return resp, err
	}
	body, err := io.ReadAll(resp.Body)
	if err != nil {
		return nil, err
	}
	body = m.form.ReplaceAll(body, []byte(m.as))
	resp.Body, resp.ContentLength = io.NopCloser(bytes.NewReader(body)), int64(len(body))
	return resp, nil
}

// TestTheSuiteCatchesAMisreadFigure is TestTheSuiteCatches for what a driver reads inside.
func TestTheSuiteCatchesAMisreadFigure(t *testing.T) {
	for _, c := range misreadings() {
		t.Run(c.name, func(t *testing.T) {
			form := regexp.MustCompile(c.form)
			got := providertest.Try(t.Context(), caseNamed(t, c.name), func(ct providertest.T, pc providertest.Case) providertest.Harness {
				return newHarness(ct, pc, sim.Options{}, func(next http.RoundTripper) http.RoundTripper {
					return misread{next, form, c.as}
				})
			})
			if len(got) == 0 {
				t.Errorf("a driver passes that reads %s as %s", c.form, c.as)
			}
		})
	}
}

func misreadings() []struct{ name, form, as string } {
	return []struct{ name, form, as string }{
		{"APriceAsTextIsItOrNone", `"(dph_base|min_bid)":"[0-9.]+"`, `"$1":0.1`},
		{"ANullPriceIsNoOffer", `"(dph_base|min_bid)":null`, `"$1":0.1`},
		{"AZeroPriceIsNoOffer", `"(dph_base|min_bid)":0,`, `"$1":0.1,`},
		{"ARateAsTextIsItOrNone", `"dph_total":"[0-9.]+"`, `"dph_total":0.1`},
		{"ANullRateIsNotSaid", `"dph_total":null`, `"dph_total":0.1`},
		{"AZeroRateIsNotSaid", `"dph_total":0,`, `"dph_total":0.1,`},
		// A row that cannot be read, for a driver that then reads none.
		{"APriceAsTextIsItOrNone", `(?s)^.*"dph_base":"[0-9.]+".*$`, `{"offers":[]}`},
	}
}
