package localkube

import (
	"fmt"
	"net"
	"path/filepath"
	"strconv"
	"strings"
)

// Names of the programs, in the assets folder and in errors.
const (
	etcd              = "etcd"
	apiserver         = "kube-apiserver"
	controllerManager = "kube-controller-manager"
	scheduler         = "kube-scheduler"
	kubectl           = "kubectl"
)

// idleControllers do nothing in a cluster that has neither nodes nor volumes.
var idleControllers = []string{
	"node-ipam-controller", "node-lifecycle-controller", "taint-eviction-controller", "device-taint-eviction-controller",
	"ttl-controller", "persistentvolume-attach-detach-controller", "persistentvolume-expander-controller",
	"certificatesigningrequest-signing-controller", "certificatesigningrequest-approving-controller",
	"certificatesigningrequest-cleaner-controller",
}

// layout is where one start keeps its files and which ports it uses.
type layout struct {
	dir   string
	pki   pki
	ports ports
}

func (l layout) kubeconfig(pair string) string { return filepath.Join(l.dir, pair+".kubeconfig") }

type ports struct {
	etcdClient, etcdPeer, apiserver, controllerManager, scheduler int
}

// freePorts are free now and may not be when they are used; Start tries again then. They are held together so that no
// two are the same. A fixed port for the API server is taken as it is.
func freePorts(fixed int) (ports, error) {
	var (
		p    ports
		held []net.Listener
	)
	defer func() {
		for _, l := range held {
			_ = l.Close() // Nobody ever connected to it.
		}
	}()
	for _, port := range []*int{&p.etcdClient, &p.etcdPeer, &p.apiserver, &p.controllerManager, &p.scheduler} {
		if port == &p.apiserver && fixed != 0 {
			*port = fixed
			continue
		}
		l, err := net.Listen("tcp", "127.0.0.1:0") //nolint:noctx // It does not wait.
		if err != nil {
			return ports{}, err
		}
		held = append(held, l)
		addr, ok := l.Addr().(*net.TCPAddr)
		if !ok {
			return ports{}, fmt.Errorf("a TCP listener at %s, which has no port", l.Addr())
		}
		*port = addr.Port
	}
	return p, nil
}

func loopback(port int) string { return "https://127.0.0.1:" + strconv.Itoa(port) }

func (l layout) etcdArgs() []string {
	client, peer := loopback(l.ports.etcdClient), loopback(l.ports.etcdPeer)
	cert, key, ca := l.pki.cert(pairEtcd), l.pki.key(pairEtcd), l.pki.cert(pairEtcdCA)
	return flags(
		"name", "default",
		"data-dir", filepath.Join(l.dir, "etcd"),
		"listen-client-urls", client, "advertise-client-urls", client,
		"listen-peer-urls", peer, "initial-advertise-peer-urls", peer, "initial-cluster", "default="+peer,
		// Any user of the machine can connect to a loopback port, and etcd holds every Secret.
		"cert-file", cert, "key-file", key, "trusted-ca-file", ca, "client-cert-auth", "true",
		"peer-cert-file", cert, "peer-key-file", key, "peer-trusted-ca-file", ca, "peer-client-cert-auth", "true",
		// The data outlive a killed process, though not a crashed machine, and every write is many times faster.
		"unsafe-no-fsync", "true",
		"log-level", "warn",
	)
}

func (l layout) apiserverArgs(controllers bool) []string {
	args := flags(
		"etcd-servers", loopback(l.ports.etcdClient),
		"etcd-cafile", l.pki.cert(pairEtcdCA), "etcd-certfile", l.pki.cert(pairEtcd), "etcd-keyfile", l.pki.key(pairEtcd),
		"bind-address", "127.0.0.1", "secure-port", strconv.Itoa(l.ports.apiserver),
		"tls-cert-file", l.pki.cert(pairServing), "tls-private-key-file", l.pki.key(pairServing),
		"client-ca-file", l.pki.cert(pairCA),
		"service-account-issuer", "https://kubernetes.default.svc",
		"service-account-key-file", l.pki.serviceAccount(), "service-account-signing-key-file", l.pki.serviceAccount(),
		"service-cluster-ip-range", "10.0.0.0/24",
		"authorization-mode", "RBAC",
		"allow-privileged", "true",
		// The address would be a loopback one, which Endpoints refuse.
		"advertise-address", "127.0.0.1", "endpoint-reconciler-type", "none",
		// Few clients, all trusted: queues between them only cost time.
		"enable-priority-and-fairness", "false",
		"profiling", "false",
		"v", "0",
	)
	if !controllers {
		// Nobody makes the default service accounts that pods are checked for.
		args = append(args, "--disable-admission-plugins=ServiceAccount")
	}
	return args
}

func (l layout) controllerManagerArgs() []string {
	return append(l.clientArgs(pairControllerManager, l.ports.controllerManager), flags(
		"controllers", "*,-"+strings.Join(idleControllers, ",-"),
		"root-ca-file", l.pki.cert(pairCA),
		"service-account-private-key-file", l.pki.serviceAccount(),
		"use-service-account-credentials", "false",
	)...)
}

func (l layout) schedulerArgs() []string {
	return l.clientArgs(pairScheduler, l.ports.scheduler)
}

// clientArgs are what the controller manager and the scheduler have in common.
func (l layout) clientArgs(pair string, port int) []string {
	return flags(
		"kubeconfig", l.kubeconfig(pair),
		"bind-address", "127.0.0.1", "secure-port", strconv.Itoa(port),
		"tls-cert-file", l.pki.cert(pairServing), "tls-private-key-file", l.pki.key(pairServing),
		// There is one of each, and an election costs seconds.
		"leader-elect", "false",
		"kube-api-qps", "500", "kube-api-burst", "1000",
		"profiling", "false",
		"v", "0",
	)
}

// flags makes --name=value of pairs.
func flags(pairs ...string) []string {
	args := make([]string, 0, len(pairs)/2)
	for i := 0; i < len(pairs); i += 2 {
		args = append(args, fmt.Sprintf("--%s=%s", pairs[i], pairs[i+1]))
	}
	return args
}
