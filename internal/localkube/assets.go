package localkube

import (
	"bytes"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
)

// assetsVariable names a folder to use instead of our own build, as it does for envtest.
const assetsVariable = "KUBEBUILDER_ASSETS"

// builderScript knows by which key a build is kept, and is only found in a checkout.
const builderScript = "hack/controlplane.sh"

// AssetsDir is the folder that holds the programs of a control plane: what KUBEBUILDER_ASSETS says where it is set,
// else this checkout's finished build. It never builds; its error says what to do.
func AssetsDir() (string, error) {
	if dir := os.Getenv(assetsVariable); dir != "" {
		return dir, nil
	}
	root, err := ModuleRoot()
	if err != nil {
		return "", fmt.Errorf("%s is not set and the local Kubernetes is built from a checkout of gpuscale: %w",
			assetsVariable, err)
	}
	cmd := exec.Command(filepath.Join(root, builderScript), "--cached") //nolint:noctx // It only looks at files, and callers have no context.
	var stderr bytes.Buffer
	cmd.Stderr = &stderr
	out, err := cmd.Output()
	var exit *exec.ExitError
	if errors.As(err, &exit) {
		return "", fmt.Errorf("%s (in %s), or set %s", bytes.TrimSpace(stderr.Bytes()), root, assetsVariable)
	}
	if err != nil {
		return "", fmt.Errorf("find the local Kubernetes: %w", err)
	}
	return string(bytes.TrimSpace(out)), nil
}

// ModuleRoot is the folder of the gpuscale checkout that the working directory is in.
func ModuleRoot() (string, error) {
	start, err := os.Getwd()
	if err != nil {
		return "", err
	}
	for dir := start; ; dir = filepath.Dir(dir) {
		if _, err := os.Stat(filepath.Join(dir, builderScript)); err == nil {
			return dir, nil
		} else if !errors.Is(err, os.ErrNotExist) {
			return "", err
		}
		if dir == filepath.Dir(dir) {
			return "", fmt.Errorf("%s is not in a checkout of gpuscale", start)
		}
	}
}

// checkAssets says which of the programs is missing.
func checkAssets(dir string, programs []string) error {
	for _, program := range programs {
		info, err := os.Stat(filepath.Join(dir, program))
		if errors.Is(err, os.ErrNotExist) {
			return fmt.Errorf("%s has no %s (needed: %v); run `make controlplane`, or set %s to a folder that has them",
				dir, program, programs, assetsVariable)
		}
		if err != nil {
			return err
		}
		if info.IsDir() || info.Mode()&0o111 == 0 {
			return fmt.Errorf("%s in %s cannot be executed", program, dir)
		}
	}
	return nil
}
