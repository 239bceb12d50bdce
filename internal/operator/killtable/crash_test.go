package killtable_test

import (
	"encoding/base64"
	"encoding/hex"
	"errors"
	"fmt"
	"strings"
	"syscall"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/munhq/gpuscale/api/v1alpha1"
	"github.com/munhq/gpuscale/internal/cloudsim/market"
	"github.com/munhq/gpuscale/internal/identity"
)

// Secrets that the controllers' process holds beside simKey.
const (
	environmentKey = "marked-environment-key-77aa02"
	weightsToken   = "hf_markedtoken3b9d11"
)

// TestACrashTellsNoSecret has the controllers' process panic while its request for a machine is under way, with keys in its
// memory, and later end by SIGQUIT and by SIGABRT, as a kubelet or a person may. What it prints has every goroutine and no
// secret, and each time its successor goes on.
func TestACrashTellsNoSecret(t *testing.T) {
	t.Setenv("GOTRACEBACK", "system")
	b := newBench(t)
	if err := b.client.Create(t.Context(), &corev1.Secret{ObjectMeta: metav1.ObjectMeta{Namespace: system, Name: "hf"},
		StringData: map[string]string{"HF_TOKEN": weightsToken}}); err != nil {
		t.Fatal(err)
	}
	const at = "provider create, sent #1"
	var said string
	s := scenario{name: "crash", offers: []market.Offer{offer("1001", 0.10), offer("1002", 0.15)}, most: 1, panics: true,
		env: map[string]string{"VASTAI_API_KEY": environmentKey},
		edit: func(p *v1alpha1.GPUNodePool) {
			p.Spec.Bootstrap.HFTokenSecret = &v1alpha1.SecretReference{Namespace: system, Name: "hf"}
			byEnvironment := p.Spec.Providers[0]
			byEnvironment.APIKeySecret, byEnvironment.CapacityType = nil, "on-demand"
			p.Spec.Providers = append(p.Spec.Providers, byEnvironment)
		},
		whenServed: func(l *life) error {
			for _, signal := range []syscall.Signal{syscall.SIGQUIT, syscall.SIGABRT} {
				if err := l.crash(signal); err != nil {
					return err
				}
			}
			said = l.said
			return nil
		}}
	o := b.live(t.Context(), run{scenario: s, habits: prompt, killAt: at})
	if o.err != nil || !o.reached {
		t.Fatalf("reached %t, %v", o.reached, o.err)
	}
	for _, part := range []string{"panic: planted", "SIGQUIT: quit", "SIGABRT: abort"} {
		if !strings.Contains(said, part) {
			t.Errorf("its output lacks %q", part)
		}
	}
	if n := strings.Count(said, "\ngoroutine "); n < 100 {
		t.Errorf("%d goroutines in three crashes", n)
	}
	secrets := map[string]string{"provider key": simKey, "key in the environment": environmentKey, "Hugging Face token": weightsToken}
	for name, key := range map[string]string{identity.SecretCA: "ca.key", identity.SecretGateway: "tls.key"} {
		made := &corev1.Secret{}
		if err := b.client.Get(t.Context(), client.ObjectKey{Namespace: system, Name: name}, made); err != nil {
			t.Fatal(err)
		}
		lines := strings.Split(strings.TrimSpace(string(made.Data[key])), "\n")
		if len(lines) < 3 {
			t.Fatalf("%s has no key in %s", name, key)
		}
		secrets["key of "+name] = lines[1]
	}
	for name, secret := range secrets {
		for form, text := range map[string]string{"it is": secret, "hex": hex.EncodeToString([]byte(secret)), "base64": base64.StdEncoding.EncodeToString([]byte(secret))} {
			if i := strings.Index(said, text); i >= 0 {
				t.Errorf("the output of the crash has the %s as %s: …%s", name, form, said[max(0, i-200):i])
			}
		}
	}
}

// crash ends the process by a signal of which it prints its goroutines, and starts it again when it has.
func (l *life) crash(by syscall.Signal) error {
	// Its controllers run again, so that they hold what they need for work.
	before := len(points(l.orders.Trace))
	for end := time.Now().Add(30 * time.Second); len(points(l.orders.Trace)) < before+5; time.Sleep(20 * time.Millisecond) {
		if time.Now().After(end) {
			return errors.New("the controllers do nothing")
		}
	}
	if err := l.child.Process.Signal(by); err != nil {
		return err
	}
	if err := <-l.ended; err == nil {
		return fmt.Errorf("it ended well by %s", by)
	}
	l.said = l.stderr.String() // while nobody writes to it
	return l.startChild()
}
