package localkube

import (
	"os"

	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/clientcmd"
	"k8s.io/client-go/tools/clientcmd/api"
)

const contextName = "gpuscale-local"

// restConfig is for a client with the named certificate.
func (l layout) restConfig(pair string) (*rest.Config, error) {
	var tls rest.TLSClientConfig
	for path, data := range map[string]*[]byte{
		l.pki.cert(pairCA): &tls.CAData,
		l.pki.cert(pair):   &tls.CertData,
		l.pki.key(pair):    &tls.KeyData,
	} {
		read, err := os.ReadFile(path)
		if err != nil {
			return nil, err
		}
		*data = read
	}
	return &rest.Config{
		Host:            loopback(l.ports.apiserver),
		TLSClientConfig: tls,
		// As envtest does: the limits of client-go are for clusters that others share.
		QPS:   1000,
		Burst: 2000,
	}, nil
}

// writeKubeconfig writes the file that l.kubeconfig names, readable by this user only.
func (l layout) writeKubeconfig(pair string) error {
	cfg, err := l.restConfig(pair)
	if err != nil {
		return err
	}
	file := api.NewConfig()
	file.Clusters[contextName] = &api.Cluster{Server: cfg.Host, CertificateAuthorityData: cfg.CAData}
	file.AuthInfos[pair] = &api.AuthInfo{ClientCertificateData: cfg.CertData, ClientKeyData: cfg.KeyData}
	file.Contexts[contextName] = &api.Context{Cluster: contextName, AuthInfo: pair}
	file.CurrentContext = contextName
	// Removed first: writing into a file keeps the mode it has.
	path := l.kubeconfig(pair)
	if err := os.Remove(path); err != nil && !os.IsNotExist(err) {
		return err
	}
	return clientcmd.WriteToFile(*file, path)
}
