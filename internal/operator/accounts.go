package operator

import (
	"context"
	"fmt"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/munhq/gpuscale/api/v1alpha1"
	"github.com/munhq/gpuscale/internal/account"
	"github.com/munhq/gpuscale/internal/controller/claim"
	"github.com/munhq/gpuscale/internal/identity"
	"github.com/munhq/gpuscale/pkg/provider"
	"github.com/munhq/gpuscale/pkg/provider/drivers"
)

// newAccounts opens accounts with this release's drivers; simulated clouds are reached by their base URLs.
func newAccounts(ctx context.Context, reader client.Reader, cfg Config, id identity.Identity) *account.Accounts {
	return account.New(ctx, account.Options{
		Constructors: account.Drivers(func(name provider.Name) drivers.Options {
			return drivers.Options{BaseURL: cfg.BaseURLs[name], Transport: cfg.Transport, PaceFactor: cfg.PaceFactor}
		}, cfg.Wrap),
		Secrets: secretReader{reader}.data,
		Env: func(name string) (string, bool) {
			v := cfg.Getenv(name)
			return v, v != ""
		},
		TagPrefix: claim.TagPrefix(id.Installation),
		Clock:     cfg.Clock,
	})
}

// recentAccounts gives accounts whose credentials were read a moment ago.
type recentAccounts struct{ *account.Accounts }

// For is Accounts.Recent.
func (r recentAccounts) For(ctx context.Context, ref account.Ref) (*account.Account, error) {
	return r.Recent(ctx, ref)
}

// Holder is Accounts.RecentHolder.
func (r recentAccounts) Holder(ctx context.Context, ref account.Ref, identity string) (*account.Account, error) {
	return r.RecentHolder(ctx, ref, identity)
}

// secretReader reads Secrets one by one, past the cache.
type secretReader struct{ client.Reader }

func (r secretReader) data(ctx context.Context, namespace, name string) (map[string][]byte, error) {
	secret := &corev1.Secret{}
	err := r.Get(ctx, client.ObjectKey{Namespace: namespace, Name: name}, secret)
	if apierrors.IsNotFound(err) {
		return nil, fmt.Errorf("%w: %w", account.ErrSecretNotFound, err)
	}
	return secret.Data, err
}

// hfTokenKey is where a pool's hfTokenSecret holds the token.
const hfTokenKey = "HF_TOKEN"

func (r secretReader) hfToken(ctx context.Context, ref v1alpha1.SecretReference) (string, error) {
	data, err := r.data(ctx, ref.Namespace, ref.Name)
	if err != nil {
		return "", fmt.Errorf("the Secret %s/%s of bootstrap.hfTokenSecret: %w", ref.Namespace, ref.Name, err)
	}
	token := string(data[hfTokenKey])
	if token == "" {
		return "", fmt.Errorf("the Secret %s/%s of bootstrap.hfTokenSecret has no key %s", ref.Namespace, ref.Name, hfTokenKey)
	}
	return token, nil
}
