// Package boottest checks, in tests, what virtual machines are told at their first boot, by the tools that will read it.
// make test gets them.
package boottest

import (
	"context"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
)

// CloudConfig refuses what is no #cloud-config by cloud-init's own schema. It needs cloud-init.
func CloudConfig(ctx context.Context, text string) error {
	return judge(ctx, text, "user-data", "cloud-init", "schema", "--config-file")
}

// Unit refuses what systemd would not take, or not as it is meant, as the unit of that name. The programs that it names
// have to be there. It needs systemd-analyze.
func Unit(ctx context.Context, name, text string) error {
	return judge(ctx, text, name, "systemd-analyze", "verify", "--man=no", "--recursive-errors=no")
}

// Bash refuses a script that bash cannot read or that shellcheck has something to say about.
func Bash(ctx context.Context, text string) error {
	if err := judge(ctx, text, "script.sh", "bash", "-n"); err != nil {
		return err
	}
	return judge(ctx, text, "script.sh", "shellcheck", "-s", "bash")
}

func judge(ctx context.Context, text, name string, command ...string) error {
	dir, err := os.MkdirTemp("", "boot")
	if err != nil {
		return err
	}
	defer func() { _ = os.RemoveAll(dir) }() // Nothing is kept of it.
	path := filepath.Join(dir, name)
	if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
		return err
	}
	out, err := exec.CommandContext(ctx, command[0], append(command[1:], path)...).CombinedOutput()
	if err != nil {
		return fmt.Errorf("%s of %s: %w\n%s", command[0], name, err, out)
	}
	return nil
}
