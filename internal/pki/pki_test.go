package pki_test

import (
	"crypto/tls"
	"crypto/x509"
	"encoding/pem"
	"fmt"
	"io"
	"log"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"time"

	"github.com/munhq/gpuscale/internal/agentapi"
	"github.com/munhq/gpuscale/internal/pki"
)

const (
	installation = "5f2c91ab"
	claim        = "0b8f3e52-6f0d-4b54-9c62-1f0a6c1de3aa"
)

var now = time.Date(2026, 11, 20, 12, 0, 0, 0, time.UTC)

func must[T any](v T, err error) T {
	if err != nil {
		panic(err)
	}
	return v
}

func bootOf(ca *pki.CA, uid string) agentapi.Boot {
	pair := must(ca.Worker(uid, 24*time.Hour, now))
	return agentapi.Boot{Installation: ca.Installation(), ClaimUID: uid, CAPEM: string(ca.PEM()),
		CertPEM: string(pair.CertPEM), KeyPEM: string(pair.KeyPEM)}
}

// serve answers with the caller's role; /controller is for the controller only.
func serve(t *testing.T, config *tls.Config) *httptest.Server {
	t.Helper()
	handler := func(w http.ResponseWriter, r *http.Request) {
		role := pki.CallerRole(r, installation)
		if r.URL.Path == "/controller" && role != agentapi.RoleController {
			w.WriteHeader(http.StatusForbidden)
		}
		fmt.Fprint(w, role)
	}
	server := httptest.NewUnstartedServer(http.HandlerFunc(handler))
	server.Config.ErrorLog = log.New(io.Discard, "", 0)
	config.Time = func() time.Time { return now }
	server.TLS = config
	server.StartTLS()
	t.Cleanup(server.Close)
	return server
}

func get(url string, config *tls.Config) (int, string, error) {
	transport := &http.Transport{TLSClientConfig: config}
	defer transport.CloseIdleConnections()
	response, err := (&http.Client{Transport: transport}).Get(url)
	if err != nil {
		return 0, "", err
	}
	defer response.Body.Close()
	body, err := io.ReadAll(response.Body)
	return response.StatusCode, string(body), err
}

func clientConfig(pair pki.Pair, caPEM []byte, uid string) *tls.Config {
	config := must(pki.ClientTLS(pair, caPEM, uid))
	config.Time = func() time.Time { return now }
	return config
}

func TestCallersOfTheInstallationGetIn(t *testing.T) {
	ca := must(pki.NewCA(installation, now))
	server := serve(t, must(pki.ServerTLS(bootOf(ca, claim))))
	for _, c := range []struct {
		role, path string
		code       int
	}{
		{agentapi.RoleController, "/controller", http.StatusOK},
		{agentapi.RoleController, "/", http.StatusOK},
		{agentapi.RoleGateway, "/", http.StatusOK},
		{agentapi.RoleGateway, "/controller", http.StatusForbidden},
	} {
		pair := must(ca.Client(c.role, time.Hour, now))
		code, body, err := get(server.URL+c.path, clientConfig(pair, ca.PEM(), claim))
		if err != nil || code != c.code || body != c.role {
			t.Errorf("%s at %s: got %d %q, %v, want %d", c.role, c.path, code, body, err, c.code)
		}
	}
}

func TestNobodyElseGetsIn(t *testing.T) {
	ca := must(pki.NewCA(installation, now))
	server := serve(t, must(pki.ServerTLS(bootOf(ca, claim))))
	good := must(ca.Client(agentapi.RoleController, time.Hour, now))

	other := must(pki.NewCA("aaaaaaaa", now))
	sameName := must(pki.NewCA(installation, now))
	// A CA with this installation's key that names another installation: the URI alone must be enough to refuse.
	renamed := must(renamedCA(ca, "bbbbbbbb"))

	noCert := clientConfig(good, ca.PEM(), claim)
	noCert.Certificates = nil
	withPair := func(pair pki.Pair) *tls.Config {
		config := clientConfig(good, ca.PEM(), claim)
		config.Certificates = []tls.Certificate{must(pair.Certificate())}
		return config
	}
	worker := must(ca.Worker("another-claim", time.Hour, now))
	tls12 := clientConfig(good, ca.PEM(), claim)
	tls12.MinVersion, tls12.MaxVersion = tls.VersionTLS12, tls.VersionTLS12

	for name, config := range map[string]*tls.Config{
		"no certificate":                  noCert,
		"other installation":              withPair(must(other.Client(agentapi.RoleController, time.Hour, now))),
		"another CA with the same id":     withPair(must(sameName.Client(agentapi.RoleController, time.Hour, now))),
		"same CA key, other installation": withPair(must(renamed.Client(agentapi.RoleController, time.Hour, now))),
		"expired":                         withPair(must(ca.Client(agentapi.RoleController, time.Hour, now.Add(-2*time.Hour)))),
		"not valid yet":                   withPair(must(ca.Client(agentapi.RoleController, time.Hour, now.Add(3*time.Hour)))),
		"worker as client":                withPair(worker),
		"TLS 1.2":                         tls12,
	} {
		if code, _, err := get(server.URL, config); err == nil {
			t.Errorf("%s: got in with status %d", name, code)
		}
	}
	// net/http answers plain HTTP on a TLS port by itself, before any handler.
	plain := "http://" + strings.TrimPrefix(server.URL, "https://")
	if code, body, err := get(plain, nil); err == nil && code != http.StatusBadRequest {
		t.Errorf("plain HTTP: got %d %q", code, body)
	}
}

func renamedCA(ca *pki.CA, to string) (*pki.CA, error) {
	// The subject and the key stay, so the chain verifies and only the id differs.
	block, _ := pem.Decode(ca.PEM())
	cert := must(x509.ParseCertificate(block.Bytes))
	keyPEM := must(ca.KeyPEM())
	keyBlock, _ := pem.Decode(keyPEM)
	key := must(x509.ParsePKCS8PrivateKey(keyBlock.Bytes))
	copied := *cert
	uri := *cert.URIs[0]
	uri.Host = to
	copied.URIs[0] = &uri
	der, err := x509.CreateCertificate(nil, &copied, &copied, cert.PublicKey, key)
	if err != nil {
		return nil, err
	}
	return pki.Load(pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: der}), keyPEM)
}

func TestACallerAcceptsOnlyTheClaimsWorker(t *testing.T) {
	ca := must(pki.NewCA(installation, now))
	caller := must(ca.Client(agentapi.RoleGateway, time.Hour, now))
	withServerPair := func(pair pki.Pair) *tls.Config {
		return &tls.Config{Certificates: []tls.Certificate{must(pair.Certificate())}}
	}
	for name, c := range map[string]struct {
		server *tls.Config
		ok     bool
	}{
		"its worker":           {must(pki.ServerTLS(bootOf(ca, claim))), true},
		"another claim":        {must(pki.ServerTLS(bootOf(ca, "another-claim"))), false},
		"another installation": {withServerPair(must(must(pki.NewCA("aaaaaaaa", now)).Worker(claim, time.Hour, now))), false},
		"expired":              {withServerPair(must(ca.Worker(claim, time.Hour, now.Add(-3*time.Hour)))), false},
		"a caller as server":   {withServerPair(must(ca.Client(agentapi.RoleController, time.Hour, now))), false},
	} {
		t.Run(name, func(t *testing.T) {
			server := serve(t, c.server)
			_, _, err := get(server.URL, clientConfig(caller, ca.PEM(), claim))
			if (err == nil) != c.ok {
				t.Fatalf("got error %v, want ok %v", err, c.ok)
			}
		})
	}
}

func TestLoadGivesBackTheSameCA(t *testing.T) {
	ca := must(pki.NewCA(installation, now))
	loaded := must(pki.Load(ca.PEM(), must(ca.KeyPEM())))
	if loaded.Installation() != installation {
		t.Fatalf("installation is %q", loaded.Installation())
	}
	server := serve(t, must(pki.ServerTLS(bootOf(loaded, claim))))
	pair := must(ca.Client(agentapi.RoleController, time.Hour, now))
	if _, _, err := get(server.URL, clientConfig(pair, ca.PEM(), claim)); err != nil {
		t.Fatal(err)
	}
	if end := must(pair.NotAfter()); !end.Equal(now.Add(time.Hour)) {
		t.Errorf("pair ends at %s", end)
	}
}

func TestLoadAndIssueRefuseNonsense(t *testing.T) {
	ca := must(pki.NewCA(installation, now))
	keyPEM := must(ca.KeyPEM())
	other := must(must(pki.NewCA(installation, now)).KeyPEM())
	leaf := must(ca.Client(agentapi.RoleController, time.Hour, now))
	for name, load := range map[string]func() (*pki.CA, error){
		"empty":              func() (*pki.CA, error) { return pki.Load(nil, nil) },
		"key of another":     func() (*pki.CA, error) { return pki.Load(ca.PEM(), other) },
		"leaf":               func() (*pki.CA, error) { return pki.Load(leaf.CertPEM, leaf.KeyPEM) },
		"swapped":            func() (*pki.CA, error) { return pki.Load(keyPEM, ca.PEM()) },
		"bad installation":   func() (*pki.CA, error) { return pki.NewCA("a/controller", now) },
		"empty installation": func() (*pki.CA, error) { return pki.NewCA("", now) },
	} {
		if _, err := load(); err == nil {
			t.Errorf("%s: no error", name)
		}
	}
	for name, issue := range map[string]func() (pki.Pair, error){
		"unknown role": func() (pki.Pair, error) { return ca.Client("admin", time.Hour, now) },
		"wildcard":     func() (pki.Pair, error) { return ca.Worker("*", time.Hour, now) },
		"dotted":       func() (pki.Pair, error) { return ca.Worker("a.b", time.Hour, now) },
		"negative ttl": func() (pki.Pair, error) { return ca.Worker("a", -2*time.Hour, now) },
	} {
		if _, err := issue(); err == nil {
			t.Errorf("%s: no error", name)
		}
	}
	boot := bootOf(ca, claim)
	boot.Installation = "aaaaaaaa"
	if _, err := pki.ServerTLS(boot); err == nil {
		t.Error("boot data of one installation with the CA of another: no error")
	}
}

func TestCallerRoleOfAnUnverifiedRequestIsEmpty(t *testing.T) {
	if role := pki.CallerRole(httptest.NewRequest(http.MethodGet, "/", nil), installation); role != "" {
		t.Errorf("plain request: %q", role)
	}
	unverified := httptest.NewRequest(http.MethodGet, "/", nil)
	unverified.TLS = &tls.ConnectionState{PeerCertificates: []*x509.Certificate{{}}}
	if role := pki.CallerRole(unverified, installation); role != "" {
		t.Errorf("unverified request: %q", role)
	}
}

func TestAPairDoesNotPrintItsKey(t *testing.T) {
	pair := must(must(pki.NewCA(installation, now)).Client(agentapi.RoleController, time.Hour, now))
	for _, text := range []string{fmt.Sprint(pair), fmt.Sprintf("%+v", pair), fmt.Sprintf("%#v", pair)} {
		if strings.Contains(text, "PRIVATE") || len(text) > 40 {
			t.Errorf("printed as %s", text)
		}
	}
}
