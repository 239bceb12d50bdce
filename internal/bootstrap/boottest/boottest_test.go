package boottest_test

import (
	"context"
	"testing"

	"github.com/munhq/gpuscale/internal/bootstrap/boottest"
)

// TestWhatIsWrongIsSeen: each tool finds a planted fault, and has nothing against the same without it.
func TestWhatIsWrongIsSeen(t *testing.T) {
	unit := func(ctx context.Context, text string) error { return boottest.Unit(ctx, "a.service", text) }
	for name, c := range map[string]struct {
		judge     func(context.Context, string) error
		good, bad string
	}{
		"type in a cloud-config": {boottest.CloudConfig, "#cloud-config\nruncmd: [[ls]]\n", "#cloud-config\nruncmd: 5\n"},
		"key in a cloud-config":  {boottest.CloudConfig, "#cloud-config\nruncmd: [[ls]]\n", "#cloud-config\nwrite_files: [{pth: /a}]\n"},
		"not a cloud-config":     {boottest.CloudConfig, "#cloud-config\nruncmd: [[ls]]\n", "runcmd: [[ls]]\n"},
		"key in a unit":          {unit, "[Service]\nExecStart=/bin/true\n", "[Service]\nExecStart=/bin/true\nRestrt=always\n"},
		"program of a unit":      {unit, "[Service]\nExecStart=/bin/true\n", "[Service]\nExecStart=/bin/no-such\n"},
		"syntax of a script":     {boottest.Bash, "#!/bin/bash\necho \"$1\"\n", "#!/bin/bash\nif\n"},
		"quotes in a script":     {boottest.Bash, "#!/bin/bash\necho \"$1\"\n", "#!/bin/bash\necho $1\n"},
	} {
		if err := c.judge(t.Context(), c.good); err != nil {
			t.Errorf("%s: without the fault: %v", name, err)
		}
		if c.judge(t.Context(), c.bad) == nil {
			t.Errorf("%s: not seen", name)
		}
	}
}
