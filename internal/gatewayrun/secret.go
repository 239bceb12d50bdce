package gatewayrun

import (
	"context"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/client-go/rest"
	"k8s.io/utils/clock"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/go-logr/logr"

	"github.com/munhq/gpuscale/internal/identity"
	"github.com/munhq/gpuscale/internal/pki"
	"github.com/munhq/gpuscale/internal/workerclient"
)

// rewatch is the pause before a watch that ended is begun again.
const rewatch = time.Second

// credential is what the gateway shows workers and what it believes them by.
type credential struct {
	pair pki.Pair
	ca   []byte
}

// secretWatch follows the Secret that the controller keeps the gateway's certificate in.
type secretWatch struct {
	client    client.WithWatch
	namespace string
	clock     clock.Clock
	log       logr.Logger
}

func watchSecret(cfg Config) (*secretWatch, error) {
	scheme := runtime.NewScheme()
	if err := corev1.AddToScheme(scheme); err != nil {
		return nil, err
	}
	c, err := client.NewWithWatch(rest.CopyConfig(cfg.Rest), client.Options{Scheme: scheme})
	if err != nil {
		return nil, err
	}
	return &secretWatch{client: c, namespace: cfg.Namespace, clock: cfg.Clock, log: cfg.Log}, nil
}

// first waits for the certificate.
func (s *secretWatch) first(ctx context.Context) (credential, error) {
	var got credential
	ctx, found := context.WithCancel(ctx)
	defer found()
	err := s.each(ctx, func(c credential) {
		if got.ca == nil {
			got = c
		}
		found()
	})
	if got.ca != nil {
		return got, nil
	}
	return got, err
}

// renew hands every new certificate on.
func (s *secretWatch) renew(ctx context.Context, workers *workerclient.Client) error {
	err := s.each(ctx, func(c credential) {
		if err := workers.Renew(c.pair); err != nil {
			s.log.Error(err, "the gateway's new certificate cannot be used; the old one stays")
		}
	})
	return unlessEnded(ctx, err)
}

// each calls use with every state of the Secret until ctx ends, and returns ctx's error.
func (s *secretWatch) each(ctx context.Context, use func(credential)) error {
	for {
		w, err := s.client.Watch(ctx, &corev1.SecretList{}, client.InNamespace(s.namespace),
			client.MatchingFields{"metadata.name": identity.SecretGateway})
		if err == nil {
			for e := range w.ResultChan() {
				if secret, ok := e.Object.(*corev1.Secret); ok && len(secret.Data[corev1.TLSCertKey]) > 0 {
					use(credential{pki.Pair{CertPEM: secret.Data[corev1.TLSCertKey],
						KeyPEM: secret.Data[corev1.TLSPrivateKeyKey]}, secret.Data["ca.crt"]})
				}
			}
			w.Stop()
		} else if ctx.Err() == nil {
			s.log.Info("the gateway's certificate cannot be read yet", "namespace", s.namespace, "error", err.Error())
		}
		t := s.clock.NewTimer(rewatch)
		select {
		case <-ctx.Done():
			t.Stop()
			return ctx.Err()
		case <-t.C():
		}
	}
}
