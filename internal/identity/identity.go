// Package identity is who an installation is: its id and its certificate authority, kept in one Secret that is made on
// first start. Losing it means that no running worker can be reached again, so nothing here ever replaces one.
package identity

import (
	"bytes"
	"context"
	"crypto/rand"
	"encoding/hex"
	"errors"
	"fmt"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/munhq/gpuscale/internal/agentapi"
	"github.com/munhq/gpuscale/internal/pki"
)

// Names of the two Secrets in the controller's namespace. Only the controller reads the first; the second is all that a
// gateway needs.
const (
	SecretCA      = "gpuscale-ca" //nolint:gosec // The name of a Secret.
	SecretGateway = "gpuscale-gateway-client"
)

// Keys of the Secrets.
const (
	keyInstallation = "installation"
	keyCluster      = "cluster"
	keyCACert       = "ca.crt"
	keyCAKey        = "ca.key"
	keyCert         = "tls.crt"
	keyKey          = "tls.key"
)

// gatewayTTL is how long a gateway's certificate is good for; it is renewed when less than half is left.
const gatewayTTL = 90 * 24 * time.Hour

// Identity is an installation's id and CA.
type Identity struct {
	Installation string
	CA           *pki.CA
	// CAPEM is what workers and callers trust.
	CAPEM []byte
}

// ErrCloned says that the installation's identity belongs to another cluster, or to another installation than the one that
// was started: whatever carries its tag may be somebody else's.
var ErrCloned = errors.New("InstallationCloned")

// Ensure reads the installation's identity, or makes it on first start. Two controllers that start at once agree: the
// second finds the first one's Secret. An identity that was made in another cluster is an error and nothing is done
// with it: a cloned installation must not end the machines of the one it was cloned from.
func Ensure(ctx context.Context, c client.Client, r client.Reader, namespace string, now time.Time) (Identity, error) {
	cluster, err := clusterID(ctx, r)
	if err != nil {
		return Identity{}, err
	}
	secret := &corev1.Secret{}
	err = r.Get(ctx, client.ObjectKey{Namespace: namespace, Name: SecretCA}, secret)
	if apierrors.IsNotFound(err) {
		if secret, err = create(ctx, c, r, namespace, cluster, now); err != nil {
			return Identity{}, err
		}
	}
	if err != nil {
		return Identity{}, fmt.Errorf("reading Secret %s/%s: %w", namespace, SecretCA, err)
	}
	return load(secret, cluster)
}

// Check reads past every cache whether the identity that was started with still is this cluster's, and returns the
// annotations of its Secret. The error is ErrCloned if it is not: the API server may have been restored, or replaced by
// another one at the same address.
func Check(ctx context.Context, r client.Reader, namespace, installation string) (map[string]string, error) {
	cluster, err := clusterID(ctx, r)
	if err != nil {
		return nil, err
	}
	secret := &corev1.Secret{}
	err = r.Get(ctx, client.ObjectKey{Namespace: namespace, Name: SecretCA}, secret)
	if apierrors.IsNotFound(err) {
		return nil, fmt.Errorf("%w: Secret %s/%s, which this controller started with, is gone", ErrCloned, namespace, SecretCA)
	}
	if err != nil {
		return nil, fmt.Errorf("reading Secret %s/%s: %w", namespace, SecretCA, err)
	}
	id, err := load(secret, cluster)
	if err != nil {
		return nil, err
	}
	if id.Installation != installation {
		return nil, fmt.Errorf("%w: Secret %s/%s holds installation %s, this controller started as %s", ErrCloned, namespace, SecretCA,
			id.Installation, installation)
	}
	return secret.Annotations, nil
}

func load(secret *corev1.Secret, cluster string) (Identity, error) {
	name := secret.Namespace + "/" + secret.Name
	if made := string(secret.Data[keyCluster]); made != cluster {
		return Identity{}, fmt.Errorf("%w: Secret %s was made in another cluster (%s, this is %s); delete it here if this is a new installation",
			ErrCloned, name, made, cluster)
	}
	id := string(secret.Data[keyInstallation])
	if id == "" {
		return Identity{}, fmt.Errorf("the Secret %s has no key %q", name, keyInstallation)
	}
	ca, err := pki.Load(secret.Data[keyCACert], secret.Data[keyCAKey])
	if err != nil {
		return Identity{}, fmt.Errorf("the Secret %s: %w", name, err)
	}
	return Identity{Installation: id, CA: ca, CAPEM: secret.Data[keyCACert]}, nil
}

func create(ctx context.Context, c client.Client, r client.Reader, namespace, cluster string, now time.Time) (*corev1.Secret, error) {
	var random [8]byte
	if _, err := rand.Read(random[:]); err != nil {
		return nil, err
	}
	id := hex.EncodeToString(random[:])
	ca, err := pki.NewCA(id, now)
	if err != nil {
		return nil, err
	}
	keyPEM, err := ca.KeyPEM()
	if err != nil {
		return nil, err
	}
	secret := &corev1.Secret{
		ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: SecretCA},
		Data: map[string][]byte{keyInstallation: []byte(id), keyCluster: []byte(cluster), keyCACert: ca.PEM(),
			keyCAKey: keyPEM},
	}
	err = c.Create(ctx, secret)
	if apierrors.IsAlreadyExists(err) {
		return secret, r.Get(ctx, client.ObjectKeyFromObject(secret), secret)
	}
	return secret, err
}

// clusterID is the UID of the namespace kube-system, which lives as long as the cluster.
func clusterID(ctx context.Context, r client.Reader) (string, error) {
	ns := &corev1.Namespace{}
	if err := r.Get(ctx, client.ObjectKey{Name: metav1.NamespaceSystem}, ns); err != nil {
		return "", fmt.Errorf("reading namespace %s to know this cluster again: %w", metav1.NamespaceSystem, err)
	}
	return string(ns.UID), nil
}

// EnsureGateway makes or renews the Secret that gateways call workers with.
func EnsureGateway(ctx context.Context, c client.Client, r client.Reader, namespace string, id Identity, now time.Time) error {
	secret := &corev1.Secret{}
	err := r.Get(ctx, client.ObjectKey{Namespace: namespace, Name: SecretGateway}, secret)
	if client.IgnoreNotFound(err) != nil {
		return err
	}
	if err == nil && bytes.Equal(secret.Data[keyCACert], id.CAPEM) && fresh(secret.Data[keyCert], now) {
		return nil
	}
	missing := apierrors.IsNotFound(err)
	pair, err := id.CA.Client(agentapi.RoleGateway, gatewayTTL, now)
	if err != nil {
		return err
	}
	secret.Namespace, secret.Name, secret.Type = namespace, SecretGateway, corev1.SecretTypeTLS
	secret.Data = map[string][]byte{keyCert: pair.CertPEM, keyKey: pair.KeyPEM, keyCACert: id.CAPEM}
	if missing {
		return c.Create(ctx, secret)
	}
	return c.Update(ctx, secret)
}

// fresh reports that a certificate has more than half of its life left.
func fresh(certPEM []byte, now time.Time) bool {
	end, err := pki.Pair{CertPEM: certPEM}.NotAfter()
	return err == nil && end.Sub(now) > gatewayTTL/2
}
