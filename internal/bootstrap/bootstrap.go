// Package bootstrap says what an instance runs first: the agent, told by its boot data who it is and whom it trusts.
//
// Everything here is a pure function of Params. In a rented container the agent is either part of the image or fetched
// by a short shell script, which runs nothing but the very bytes whose SHA-256 the pool names. On a VM the same script is
// part of a longer one, which has systemd run the agent.
package bootstrap

import (
	"cmp"
	"crypto/sha256"
	"encoding/base64"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"math"
	"net/url"
	"strings"
	"time"
	"unicode"

	_ "embed" // For the script.

	"github.com/munhq/gpuscale/internal/agentapi"
	"github.com/munhq/gpuscale/pkg/provider"
)

// MaxCommandBytes bounds the words of Container's command together: the least that a provider of containers takes.
const MaxCommandBytes = 4096

// Exit codes of the script that fetches the agent, each with one line on standard error.
const (
	// ExitNoFetcher: the image has none of curl, wget and python3, or nothing to take a SHA-256 with.
	ExitNoFetcher = 81
	// ExitNotFetched: no attempt brought a file.
	ExitNotFetched = 82
	// ExitWrongHash: a file came and is not the agent.
	ExitWrongHash = 83
	// ExitNoFolder: no folder can be written to.
	ExitNoFolder = 84
	// ExitNoArch: there is no agent for the machine's processor.
	ExitNoArch = 85
	// ExitNoSystemd: the VM's image has no systemd to run the agent.
	ExitNoSystemd = 86
)

// Params is all that the boot of an instance depends on.
type Params struct {
	// Image is the container image with the engine.
	Image string
	// Agent is the binary to fetch; without a URL the image has gpuscale-agent in its PATH.
	Agent Agent
	// Boot is the worker's identity. Version and Port are filled in when zero.
	Boot agentapi.Boot
}

// Agent is a binary by address and hash.
type Agent struct {
	// URL is by https or http: the hash is what is trusted. ArchWord in it stands for the machine's processor, amd64 or
	// arm64; without, the one binary is for all machines.
	URL string
	// SHA256 is the hex hash of the binary, of the one for amd64 where the URL has ArchWord.
	SHA256 string
	// SHA256ARM64 is the hash of the one for arm64. Empty means that there is none.
	SHA256ARM64 string
}

// ArchWord stands in an agent's URL for the processor.
const ArchWord = "{arch}"

// For is the agent of one processor, amd64 or arm64: its address and its hash, both empty if there is none.
func (a Agent) For(arch string) (address, sum string) {
	sum = strings.ToLower(a.SHA256)
	if strings.Contains(a.URL, ArchWord) && arch == "arm64" {
		sum = strings.ToLower(a.SHA256ARM64)
	}
	if sum == "" {
		return "", ""
	}
	return strings.Replace(a.URL, ArchWord, arch, 1), sum
}

// Check refuses an agent that no instance could be told to fetch, in words for whoever wrote it.
func (a Agent) Check() error {
	if err := checkURL(a.URL); err != nil {
		return err
	}
	if strings.Count(a.URL, ArchWord) > 1 {
		return fmt.Errorf("agent URL holds %s more than once", ArchWord)
	}
	for _, sum := range []string{a.SHA256, a.SHA256ARM64} {
		if raw, err := hex.DecodeString(sum); sum != "" && (err != nil || len(raw) != sha256.Size) {
			return fmt.Errorf("agent SHA-256 %q is not 64 hexadecimal digits", sum)
		}
	}
	switch {
	case a.SHA256 == "":
		return errors.New("agent URL without its SHA-256")
	case a.SHA256ARM64 != "" && !strings.Contains(a.URL, ArchWord):
		return fmt.Errorf("agent SHA-256 for arm64, and the URL has no %s in it", ArchWord)
	}
	return nil
}

// fetchScript fetches what its arguments name, address, hash and hash for arm64, and leaves it, checked, at $bin.
//
//go:embed fetch.sh
var fetchScript string

// runFetched ends the script in a container, whose first process is then the agent.
const runFetched = `chmod 700 "$bin" && exec "$bin"`

// agentName is the agent's name in an image's PATH.
const agentName = "gpuscale-agent"

// BootData is the value of GPUSCALE_BOOT. It fails when the result is over agentapi.MaxBootBytes, or when something is
// missing without which the agent would refuse to start.
func BootData(p Params) (string, error) {
	boot := p.Boot
	if boot.Version == 0 {
		boot.Version = 1
	}
	boot.Port = portOf(p)
	for _, field := range []struct{ name, value string }{
		{"installation", boot.Installation}, {"claim UID", boot.ClaimUID},
		{"certificate", boot.CertPEM}, {"key", boot.KeyPEM}, {"CA", boot.CAPEM},
	} {
		if field.value == "" {
			return "", fmt.Errorf("boot data without %s", field.name)
		}
	}
	text, err := json.Marshal(boot)
	if err != nil {
		return "", err
	}
	encoded := base64.StdEncoding.EncodeToString(text)
	if len(encoded) > agentapi.MaxBootBytes {
		return "", fmt.Errorf("boot data are %d bytes, at most %d are taken", len(encoded), agentapi.MaxBootBytes)
	}
	return encoded, nil
}

// Leased gives a worker its lease, and what its provider's instances can do: end their own rental, and read of their
// interruption. apiURL is the provider's API where it is not the provider's own; lease 0 is for ever.
func Leased(boot agentapi.Boot, lease time.Duration, can provider.Capabilities, apiURL string) agentapi.Boot {
	boot.LeaseSeconds = int(math.Ceil(lease.Seconds()))
	boot.Notices = string(can.Notices)
	if can.SelfEndBy != "" {
		boot.SelfEnd = &agentapi.SelfEnd{By: string(can.SelfEndBy), URL: apiURL}
	}
	return boot
}

// For is the boot of what a provider rents, Container or VM. It fails when the result is over the provider's limit.
func For(can provider.Capabilities, p Params) (provider.Boot, error) {
	if can.Boot != provider.BootVM {
		return Container(p)
	}
	boot, err := VM(p)
	if err == nil && len(boot.UserData) > can.BootDataLimit {
		return provider.Boot{}, fmt.Errorf("start-up script is %d bytes, the provider takes %d", len(boot.UserData), can.BootDataLimit)
	}
	return boot, err
}

// Container is the boot of a rented container: the engine's image, with the agent as its first process. The command's
// words hold no single quote, so that a driver may quote them for a shell by single quotes alone. The environment
// holds the worker's identity, the command nothing that is secret.
func Container(p Params) (provider.Boot, error) {
	if p.Image == "" {
		return provider.Boot{}, errors.New("no image")
	}
	data, err := BootData(p)
	if err != nil {
		return provider.Boot{}, err
	}
	command, err := command(p)
	if err != nil {
		return provider.Boot{}, err
	}
	return provider.Boot{
		Image:   p.Image,
		Command: command,
		Env:     map[string]string{agentapi.EnvBoot: data},
		Port:    portOf(p),
	}, nil
}

func portOf(p Params) int { return cmp.Or(p.Boot.Port, agentapi.DefaultPort) }

func command(p Params) ([]string, error) {
	if p.Agent.URL == "" {
		return []string{agentName}, nil
	}
	if err := p.Agent.Check(); err != nil {
		return nil, err
	}
	words := []string{"/bin/sh", "-c", strings.TrimSpace(fetchScript) + "\n" + runFetched, agentName, p.Agent.URL, strings.ToLower(p.Agent.SHA256),
		cmp.Or(strings.ToLower(p.Agent.SHA256ARM64), "none")}
	if n := len(strings.Join(words, " ")); n > MaxCommandBytes {
		return nil, fmt.Errorf("command is %d bytes, at most %d are taken", n, MaxCommandBytes)
	}
	return words, nil
}

// checkURL refuses what could be read as something else than an address: by a fetcher (an option) or by a driver's
// quoting. A URL with a password is refused because commands are shown in consoles and process lists.
func checkURL(text string) error {
	u, err := url.Parse(text)
	switch {
	case err != nil:
		return errors.New("agent URL cannot be parsed")
	case u.Scheme != "https" && u.Scheme != "http" || u.Host == "":
		return fmt.Errorf("agent URL must begin with https:// or http://, not %q", u.Scheme)
	case u.User != nil:
		return errors.New("agent URL holds a user or password, which would be visible on the instance")
	case strings.ContainsAny(text, "'\"\\`$ ") || strings.ContainsFunc(text, unicode.IsControl):
		return errors.New("agent URL holds a quote, dollar sign, backslash, space or control character")
	}
	return nil
}
