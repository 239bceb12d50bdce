package vastai

import (
	"fmt"
	"net/http"
	"regexp"
	"slices"
	"strconv"
	"strings"
)

// form is a create's body as understood.
type form struct {
	image, label, runtype, onstart, target string
	command                                []string
	env                                    map[string]string
	ports                                  []int
	disk                                   float64
	price                                  *float64
	cancel                                 bool
}

// bad is a refusal of a form.
type bad struct {
	status    int
	slug, msg string
}

func badArgs(format string, args ...any) *bad {
	return &bad{http.StatusBadRequest, "invalid_args", "error 400/3467: Invalid args: " + fmt.Sprintf(format, args...)}
}

const (
	minDisk      = 8
	maxImage     = 1024
	maxLabel     = 256
	maxCommand   = 4096
	maxEnvName   = 256
	maxEnv       = 32768
	maxPorts     = 64
	minPrice     = 0.001
	maxPrice     = 128
	identityPort = 70000 // from here on an internal number asks for the same number outside
)

// formKeys are the keys that the vendor documents, with what each holds.
func formKeys() columns {
	c := columns{}
	typed(text, `client_id image label runtype onstart args_str target_state image_login user template_hash_id
		jupyter_dir`, c)
	typed(number, `disk price`, c)
	typed(boolean, `cancel_unavail vm force python_utf8 lang_utf8 use_jupyter_lab use_ssh`, c)
	return c
}

func readOrderForm(raw object) (form, *bad) {
	f := form{disk: minDisk, target: "running"}
	known := formKeys()
	for _, k := range sortedKeys(raw) {
		kind, plain := known[k]
		if !plain && !slices.Contains([]string{"env", "args", "volume_info"}, k) {
			return f, badArgs("unknown field '%s'", k)
		}
		if plain && checkScalar(kind, k, raw[k]) != nil {
			return f, badArgs("'%s' has the wrong type", k)
		}
	}
	for _, read := range []func(object) *bad{f.readImage, f.readText, f.readEnv, f.readCommand, f.readMoney} {
		if b := read(raw); b != nil {
			return f, b
		}
	}
	return f, nil
}

func str(raw object, key string) string {
	s, _ := raw[key].(string)
	return s
}

func (f *form) readImage(raw object) *bad {
	f.image = str(raw, "image")
	switch {
	case f.image == "":
		return badArgs("'image' is required")
	case len(f.image) > maxImage:
		return badArgs("'image' is too long")
	case raw["vm"] == true:
		return &bad{http.StatusBadRequest, "no_ssh_key_for_vm", "error 400/3475: add an SSH key to your account first."}
	case raw["volume_info"] != nil:
		return badArgs("this machine offers no volumes")
	}
	// What follows the last slash must carry a tag or a digest; the vendor's server stumbles over an image without.
	name := f.image[strings.LastIndex(f.image, "/")+1:]
	if !strings.ContainsAny(name, ":@") {
		return &bad{http.StatusInternalServerError, "server_error", "server_error"}
	}
	if login := str(raw, "image_login"); login != "" && !imageLogin.MatchString(login) {
		return &bad{http.StatusBadRequest, "invalid_args", "error 400/3483: Invalid args: invalid or suspect image login"}
	}
	return nil
}

var imageLogin = regexp.MustCompile(`^-u \S+ -p \S+ \S+$`)

func (f *form) readText(raw object) *bad {
	if id, given := raw["client_id"]; given && id != "me" {
		return badArgs("'client_id' must be 'me'")
	}
	f.label = str(raw, "label")
	if len(f.label) > maxLabel {
		return badArgs("'label' is longer than %d", maxLabel)
	}
	if t := str(raw, "target_state"); t != "" {
		f.target = t
	}
	if f.target != "running" && f.target != "stopped" {
		return badArgs("'target_state' must be running or stopped")
	}
	return nil
}

func (f *form) readCommand(raw object) *bad {
	f.onstart = str(raw, "onstart")
	argsStr := str(raw, "args_str")
	size := len(f.onstart) + len(argsStr)
	var args []string
	if v := raw["args"]; v != nil {
		list, ok := v.([]any)
		if !ok {
			return badArgs("'args' must be a list")
		}
		for _, a := range list {
			s, ok := a.(string)
			if !ok {
				return badArgs("'args' must be a list of strings")
			}
			args = append(args, s)
			size += len(s)
		}
	}
	if size > maxCommand {
		return badArgs("args, args_str and onstart together are longer than %d", maxCommand)
	}
	if argsStr != "" {
		args = append(args, strings.Fields(argsStr)...)
	}
	return f.readRuntype(raw, args)
}

func (f *form) readRuntype(raw object, args []string) *bad {
	if f.runtype = str(raw, "runtype"); f.runtype == "" {
		f.runtype = "ssh"
		if len(args) > 0 {
			f.runtype = "args"
		}
	}
	switch f.runtype {
	case "args":
		// Here the start script stands for the image's entrypoint.
		if f.onstart != "" {
			f.command = []string{f.onstart}
		}
		f.command = append(f.command, args...)
	case "ssh", "jupyter", "ssh_proxy", "ssh_direct", "jupyter_proxy", "jupyter_direct":
		if len(args) > 0 {
			return badArgs("'args' need runtype args")
		}
		f.command = []string{"/bin/bash", "-c", f.onstart}
	default:
		return badArgs("'runtype' %s", f.runtype)
	}
	return nil
}

func (f *form) readMoney(raw object) *bad {
	if d, ok := raw["disk"].(float64); ok {
		f.disk = d
	}
	if f.disk < minDisk {
		return badArgs("'disk' must be at least %d", minDisk)
	}
	if p, ok := raw["price"].(float64); ok {
		if p < minPrice || p > maxPrice {
			return &bad{http.StatusBadRequest, "invalid_price", "Please set a bid price >= 0.001 and <= 128."}
		}
		f.price = &p
	}
	f.cancel = f.price == nil && f.target == "running"
	if c, ok := raw["cancel_unavail"].(bool); ok {
		f.cancel = c
	}
	return nil
}

var envName = regexp.MustCompile(`^[A-Za-z_][A-Za-z0-9_.-]*$`)

// readEnv reads the environment, in which keys that begin with a dash are docker options.
func (f *form) readEnv(raw object) *bad {
	f.env = map[string]string{}
	v, given := raw["env"]
	if !given || v == nil {
		return nil
	}
	env, ok := v.(object)
	if !ok {
		return badArgs("'env' must be an object")
	}
	size := 0
	for _, k := range sortedKeys(env) {
		value, ok := env[k].(string)
		if !ok {
			return badArgs("value of env '%s' must be a string", k)
		}
		if size += len(k) + len(value); len(k) > maxEnvName || size > maxEnv {
			return badArgs("env is too long")
		}
		switch option, rest, _ := strings.Cut(k, " "); {
		case option == "-p":
			if b := f.readPort(rest); b != nil {
				return b
			}
		case option == "-h", option == "-v":
		case envName.MatchString(k):
			f.env[k] = value
		default:
			return badArgs("env '%s' is not a name", k)
		}
	}
	if len(f.ports) > maxPorts {
		return badArgs("more than %d ports", maxPorts)
	}
	return nil
}

// readPort reads "outside:inside", of which the outside is chosen by the host anyway.
func (f *form) readPort(s string) *bad {
	udp := strings.HasSuffix(s, "/udp")
	s = strings.TrimSuffix(strings.TrimSuffix(s, "/udp"), "/tcp")
	outside, inside, ok := strings.Cut(s, ":")
	a, errA := strconv.Atoi(outside)
	b, errB := strconv.Atoi(inside)
	inRange := func(n int) bool { return n > 0 && (n < 1<<16 || n >= identityPort && n < identityPort+30000) }
	if !ok || errA != nil || errB != nil || !inRange(a) || !inRange(b) {
		return badArgs("port mapping '%s'", s)
	}
	if !udp {
		f.ports = append(f.ports, b)
	}
	return nil
}
