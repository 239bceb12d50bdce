package tensordock

import (
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"slices"
	"strings"

	"golang.org/x/crypto/ssh"

	"github.com/munhq/gpuscale/internal/cloudsim/market"
)

// form is an order's body as understood.
type form struct {
	name, image, location, hostnode string
	vcpus, ramGB, storageGB         int
	v0Name                          string
	gpus                            int
	ownIP                           bool
	forwards, outside               []int // ports inside, and what was asked for outside
	script                          string
}

const (
	maxBody       = 1 << 20
	maxUserData   = 16 << 10
	sshPort       = 22
	leastStorage  = 100
	storageStep   = 50
	orderType     = "virtualmachine"
	unrecognised  = "unrecognized_keys"
	invalidType   = "invalid_type"
	invalidValue  = "invalid_value"
	attributesKey = "data.attributes"
)

func ramSteps() []int {
	return []int{2, 4, 6, 8, 10, 16, 32, 48, 64, 80, 96, 112, 128, 144, 160, 176, 192, 208, 224, 240, 256, 512}
}

func images() []string {
	return []string{"ubuntu2204", "ubuntu2404", "ubuntu2404_ml_everything", "ubuntu2404_ml_pytorch", "ubuntu2404_ml_tensorflow"}
}

// reader collects complaints about a document.
type reader struct{ complaints []complaint }

func (r *reader) complain(code, path, format string, args ...any) {
	r.complaints = append(r.complaints, complaint{code, fmt.Sprintf(format, args...), strings.Split(path, ".")})
}

// object reads an object with none but the known keys.
func (r *reader) object(v any, path string, known ...string) object {
	o, ok := v.(object)
	if !ok {
		r.complain(invalidType, path, "Expected object, received %s", kindOf(v))
		return object{}
	}
	for k := range o {
		if !slices.Contains(known, k) {
			r.complain(unrecognised, path, "Unrecognized key(s) in object: '%s'", k)
		}
	}
	return o
}

func kindOf(v any) string {
	switch v.(type) {
	case nil:
		return "undefined"
	case object:
		return "object"
	case []any:
		return "array"
	}
	return fmt.Sprintf("%T", v)
}

func field[T any](r *reader, o object, path, key string, required bool) T {
	v, given := o[key]
	out, ok := v.(T)
	if given && !ok || required && !given {
		r.complain(invalidType, path+"."+key, "Expected %T, received %s", out, kindOf(v))
	}
	return out
}

func (r *reader) whole(o object, path, key string) int {
	n := field[float64](r, o, path, key, true)
	if n != float64(int(n)) || n < 0 {
		r.complain(invalidType, path+"."+key, "Expected a whole number")
	}
	return int(n)
}

// readForm reads an order, or complains as the vendor's validator does.
func readForm(w http.ResponseWriter, req *http.Request) (form, []complaint) {
	r := &reader{}
	raw, err := io.ReadAll(http.MaxBytesReader(w, req.Body, maxBody))
	var doc any
	if err != nil || json.Unmarshal(raw, &doc) != nil || !strings.HasPrefix(req.Header.Get("Content-Type"), "application/json") {
		r.complain(invalidType, "", "The body is no JSON")
		return form{}, r.complaints
	}
	data := r.object(r.object(doc, "", "data")["data"], "data", "type", "attributes")
	a := r.object(data["attributes"], attributesKey, "name", "type", "image", "resources", "location_id", "hostnode_id",
		"useDedicatedIp", "ssh_key", "ssh_key_id", "port_forwards", "cloud_init")
	f := form{
		name:  field[string](r, a, attributesKey, "name", true),
		image: field[string](r, a, attributesKey, "image", true), location: field[string](r, a, attributesKey, "location_id", false),
		hostnode: field[string](r, a, attributesKey, "hostnode_id", false), ownIP: field[bool](r, a, attributesKey, "useDedicatedIp", false),
	}
	if data["type"] != orderType || a["type"] != orderType {
		r.complain(invalidValue, "data.type", "Expected '%s', in data and in attributes", orderType)
	}
	if (f.location == "") == (f.hostnode == "") {
		r.complain(invalidValue, attributesKey, "Exactly one of location_id and hostnode_id is required")
	}
	if !slices.Contains(images(), f.image) {
		r.complain(invalidValue, attributesKey+".image", "No image '%s'", f.image)
	}
	key := field[string](r, a, attributesKey, "ssh_key", false)
	if _, _, _, _, err := ssh.ParseAuthorizedKey([]byte(key)); err != nil && field[string](r, a, attributesKey, "ssh_key_id", false) == "" {
		r.complain(invalidValue, attributesKey+".ssh_key", "An SSH key is required")
	}
	f.readResources(r, a["resources"])
	f.readForwards(r, a["port_forwards"])
	f.readCloudInit(r, a["cloud_init"])
	return f, r.complaints
}

func (f *form) readResources(r *reader, v any) {
	const path = attributesKey + ".resources"
	o := r.object(v, path, "vcpu_count", "ram_gb", "storage_gb", "gpus")
	f.vcpus, f.ramGB, f.storageGB = r.whole(o, path, "vcpu_count"), r.whole(o, path, "ram_gb"), r.whole(o, path, "storage_gb")
	if f.vcpus < 2 || f.vcpus%2 != 0 {
		r.complain(invalidValue, path+".vcpu_count", "The number of vCPUs must be even")
	}
	if !slices.Contains(ramSteps(), f.ramGB) {
		r.complain(invalidValue, path+".ram_gb", "RAM of %d GB is not offered", f.ramGB)
	}
	if f.storageGB < leastStorage || f.storageGB%storageStep != 0 {
		r.complain(invalidValue, path+".storage_gb", "Storage must be at least %d GB, in steps of %d", leastStorage, storageStep)
	}
	gpus, _ := o["gpus"].(object)
	if len(gpus) != 1 {
		r.complain(invalidValue, path+".gpus", "Exactly one model of GPU is required")
	}
	for name, count := range gpus {
		f.v0Name = name
		if f.gpus = r.whole(r.object(count, path+".gpus", "count"), path+".gpus", "count"); f.gpus < 1 {
			r.complain(invalidValue, path+".gpus", "At least one GPU is required")
		}
	}
}

func (f *form) readForwards(r *reader, v any) {
	const path = attributesKey + ".port_forwards"
	list, ok := v.([]any)
	if v != nil && !ok {
		r.complain(invalidType, path, "Expected array, received %s", kindOf(v))
	}
	if f.ownIP && len(list) > 0 {
		r.complain(invalidValue, path, "A dedicated IP has all ports")
	}
	for _, item := range list {
		o := r.object(item, path, "protocol", "internal_port", "external_port")
		if p, given := o["protocol"]; given && p != "tcp" && p != "udp" {
			r.complain(invalidValue, path, "No protocol %v", p)
		}
		inside, outside := r.whole(o, path, "internal_port"), r.whole(o, path, "external_port")
		if inside < 1 || inside > 65535 || outside > 65535 {
			r.complain(invalidValue, path, "Port out of range")
		}
		f.forwards, f.outside = append(f.forwards, inside), append(f.outside, outside)
	}
}

// readCloudInit reads what cloud-init will do: files first, then commands. What the commands run of the files is the
// start-up script.
func (f *form) readCloudInit(r *reader, v any) {
	const path = attributesKey + ".cloud_init"
	if v == nil {
		return
	}
	o := r.object(v, path, "packages", "package_update", "package_upgrade", "write_files", "runcmd")
	files, size := map[string]string{}, 0
	for _, item := range field[[]any](r, o, path, "write_files", false) {
		file := r.object(item, path+".write_files", "path", "content", "owner", "permissions")
		name, content := field[string](r, file, path+".write_files", "path", true), field[string](r, file, path+".write_files", "content", true)
		files[name] = content
		size += len(content)
	}
	for _, item := range field[[]any](r, o, path, "runcmd", false) {
		command, ok := item.(string)
		if !ok {
			r.complain(invalidType, path+".runcmd", "Expected string, received %s", kindOf(item))
		}
		size += len(command)
		words := strings.Fields(command)
		if len(words) == 2 && (words[0] == "bash" || words[0] == "/bin/bash" || words[0] == "sh") {
			f.script = files[words[1]]
		}
	}
	if size > maxUserData+256 {
		r.complain("too_big", path, "cloud_init is too large")
	}
}

// fits reports whether a slice can be rented as ordered.
func (f form) fits(o market.Offer) bool {
	return v0Name(o) == f.v0Name && o.GPUs == f.gpus && f.vcpus <= vcpus(o) && f.ramGB <= ramGB(o) && float64(f.storageGB) <= o.DiskGB
}
