package bootstrap

import (
	"cmp"
	_ "embed" // For the script.
	"errors"
	"strconv"
	"strings"
	"unicode"

	"github.com/munhq/gpuscale/internal/agentapi"
	"github.com/munhq/gpuscale/pkg/provider"
)

// vmScript has words like {{Boot}} where VM puts what differs. It is no text/template: a program in which one is executed
// keeps every exported method of every type that it links, since a template may call any by its name. That made the
// controller's program, and what is resident of it, a third larger.
//
//go:embed vm.sh.in
var vmScript string

// powerOff is for a machine that ends its own rental so.
const powerOff = `
  # The controller cannot be told, and a machine that is off is not billed.
  systemctl poweroff`

// VM is the boot of a rented virtual machine: a bash script that is run once, as root, at its first boot. It fetches the
// agent, writes the boot data to a file that only root can read, and has systemd run the agent and restart it; the agent
// looks for driver, Docker and toolkit, and starts engines of the image with Docker. The script may be run again.
//
// The script holds the worker's key: whoever can read it at the provider can pose as this one worker, and as no other.
func VM(p Params) (provider.Boot, error) {
	switch {
	case p.Image == "":
		return provider.Boot{}, errors.New("no image")
	case strings.HasPrefix(p.Image, "-") || strings.ContainsAny(p.Image, "'\"\\`$ ") || strings.ContainsFunc(p.Image, unicode.IsControl):
		return provider.Boot{}, errors.New("image begins with a dash or holds a quote, dollar sign, backslash, space or control character")
	case p.Agent.URL == "":
		return provider.Boot{}, errors.New("a VM has no agent in its image and none is named to fetch")
	}
	if err := p.Agent.Check(); err != nil {
		return provider.Boot{}, err
	}
	p.Boot.Image = p.Image
	data, err := BootData(p)
	if err != nil {
		return provider.Boot{}, err
	}
	ifAlone := ""
	if p.Boot.SelfEnd != nil && p.Boot.SelfEnd.By == agentapi.SelfEndPowerOff {
		ifAlone = powerOff
	}
	script := strings.NewReplacer(
		"{{Fetch}}", strings.TrimSpace(fetchScript),
		"{{Boot}}", data,
		"{{URL}}", p.Agent.URL,
		"{{Sum}}", strings.ToLower(p.Agent.SHA256),
		"{{SumARM64}}", cmp.Or(strings.ToLower(p.Agent.SHA256ARM64), "none"),
		"{{PowerOff}}", ifAlone,
		"{{None}}", strconv.Itoa(ExitNoSystemd),
		"{{NoFolder}}", strconv.Itoa(ExitNoFolder),
	).Replace(vmScript)
	return provider.Boot{Image: p.Image, UserData: script, Port: portOf(p)}, nil
}
