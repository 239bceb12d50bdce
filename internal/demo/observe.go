package demo

import (
	"context"
	"encoding/json"
	"fmt"
	"net/http"
	"time"

	corev1 "k8s.io/api/core/v1"
	eventsv1 "k8s.io/api/events/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/watch"
	clientgoscheme "k8s.io/client-go/kubernetes/scheme"
	"k8s.io/client-go/rest"
	"k8s.io/utils/clock"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/munhq/gpuscale/api/v1alpha1"
)

// update is something seen, to be taken into the world by whoever owns it.
type update = func(w *World)

// Pauses between two looks where nothing can be watched. The provider grants a list a second for each key.
const (
	booksPause    = 300 * time.Millisecond
	providerPause = 1200 * time.Millisecond
	gatewayPause  = 500 * time.Millisecond
	ledgerPause   = time.Second
	watchPause    = 500 * time.Millisecond
	callTimeout   = 5 * time.Second
)

// observer sends what it sees.
type observer struct {
	clock   clock.Clock
	updates chan<- update
}

func (o *observer) send(ctx context.Context, u update) {
	select {
	case o.updates <- u:
	case <-ctx.Done():
	}
}

// watchKubernetes follows pods, pools, claims and events until the context ends, each from its present state on.
func (o *observer) watchKubernetes(ctx context.Context, config *rest.Config, namespace, pod string) error {
	scheme := runtime.NewScheme()
	for _, add := range []func(*runtime.Scheme) error{clientgoscheme.AddToScheme, v1alpha1.AddToScheme} {
		if err := add(scheme); err != nil {
			return err
		}
	}
	c, err := client.NewWithWatch(config, client.Options{Scheme: scheme})
	if err != nil {
		return err
	}
	for _, kind := range []struct {
		list client.ObjectList
		opts []client.ListOption
	}{
		{&corev1.PodList{}, []client.ListOption{client.InNamespace(namespace), client.MatchingFields{"metadata.name": pod}}},
		{&v1alpha1.GPUNodePoolList{}, nil},
		{&v1alpha1.GPUNodeClaimList{}, nil},
		{&eventsv1.EventList{}, nil},
	} {
		go o.watch(ctx, c, kind.list, kind.opts)
	}
	return nil
}

// watch goes on where the server ends a watch, which it does at times.
func (o *observer) watch(ctx context.Context, c client.WithWatch, list client.ObjectList, opts []client.ListOption) {
	for ctx.Err() == nil {
		w, err := c.Watch(ctx, list, opts...)
		if err == nil {
			o.follow(ctx, w)
		}
		o.pause(ctx, watchPause)
	}
}

func (o *observer) follow(ctx context.Context, w watch.Interface) {
	defer w.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case e, open := <-w.ResultChan():
			if !open {
				return
			}
			if u := taken(e, o.clock.Now()); u != nil {
				o.send(ctx, u)
			}
		}
	}
}

// taken is how the world takes an event; nil for what it has no use for.
func taken(e watch.Event, at time.Time) update {
	gone := e.Type == watch.Deleted
	switch obj := e.Object.(type) {
	case *corev1.Pod:
		return func(w *World) { w.SawPod(obj, gone, at) }
	case *v1alpha1.GPUNodePool:
		return func(w *World) { w.SawPool(obj, at) }
	case *v1alpha1.GPUNodeClaim:
		return func(w *World) { w.SawClaim(obj, gone, at) }
	case *eventsv1.Event:
		if !gone {
			return func(w *World) { w.SawEvent(obj, at) }
		}
	}
	return nil
}

func (o *observer) pause(ctx context.Context, d time.Duration) {
	t := o.clock.NewTimer(d)
	defer t.Stop()
	select {
	case <-ctx.Done():
	case <-t.C():
	}
}

// poll looks again and again until the context ends. A look that fails is one that saw nothing: what is missed in the
// end is named then.
func (o *observer) poll(ctx context.Context, every time.Duration, look func(context.Context) (update, error)) {
	for ctx.Err() == nil {
		callCtx, cancel := context.WithTimeout(ctx, callTimeout)
		u, err := look(callCtx)
		cancel()
		if err == nil && u != nil {
			o.send(ctx, u)
		}
		o.pause(ctx, every)
	}
}

// rented asks the provider as any customer with a key would.
func (o *observer) rented(base, key string) func(context.Context) (update, error) {
	return func(ctx context.Context) (update, error) {
		var page struct {
			Instances []Rented `json:"instances"`
		}
		at := o.clock.Now()
		err := getJSON(ctx, base+"/api/v1/instances/", key, &page)
		return func(w *World) { w.SawRented(page.Instances, at) }, err
	}
}

func (o *observer) books(url string) func(context.Context) (update, error) {
	return func(ctx context.Context) (update, error) {
		var a Account
		err := getJSON(ctx, url+"?series=0", "", &a)
		return func(w *World) { w.Account = a }, err
	}
}

func (o *observer) models(gateway string) func(context.Context) (update, error) {
	return func(ctx context.Context) (update, error) {
		var list struct {
			Data []struct {
				ID string `json:"id"`
			} `json:"data"`
		}
		at := o.clock.Now()
		err := getJSON(ctx, gateway+"/v1/models", "", &list)
		var names []string
		for _, m := range list.Data {
			names = append(names, m.ID)
		}
		return func(w *World) { w.SawModels(names, at) }, err
	}
}

func (o *observer) ledger(cost func(context.Context) (string, error)) func(context.Context) (update, error) {
	return func(ctx context.Context) (update, error) {
		spent, err := cost(ctx)
		return func(w *World) {
			// Only a figure from after the end is the whole.
			if _, gone := w.First(firstClaimGone); gone {
				w.LedgerCost = spent
			}
		}, err
	}
}

func getJSON(ctx context.Context, url, key string, into any) error {
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, url, nil)
	if err != nil {
		return err
	}
	if key != "" {
		req.Header.Set("Authorization", "Bearer "+key)
	}
	resp, err := http.DefaultClient.Do(req)
	if err != nil {
		return err
	}
	defer resp.Body.Close()
	if resp.StatusCode != http.StatusOK {
		return fmt.Errorf("%s: %s", req.URL.Path, resp.Status)
	}
	return json.NewDecoder(resp.Body).Decode(into)
}
