package process

import (
	"encoding/xml"
	"fmt"
	"os"
	"path/filepath"
	"strings"

	"github.com/munhq/gpuscale/internal/cloudsim/body"
)

// smiScript answers the two questions that are asked of nvidia-smi: the whole report in XML, once or in a loop, and chosen
// columns as CSV. It reads files beside itself, so that no quoting stands between a GPU's name and the answer.
const smiScript = `#!/bin/sh
here=$(dirname "$0")
columns= units=1 header=1 xml=0 every=
while [ $# -gt 0 ]; do
  arg=$1
  shift
  case $arg in
    -q) ;;
    -x) xml=1 ;;
    -l) every=5; case ${1-} in [0-9]*) every=$1; shift ;; esac ;;
    --loop=*) every=${arg#--loop=} ;;
    --query-gpu=*) columns=${arg#--query-gpu=} ;;
    --format=*)
      case $arg in *nounits*) units=0 ;; esac
      case $arg in *noheader*) header=0 ;; esac ;;
    -L) exec cat "$here/.gpu/list" ;;
    *) echo "Invalid combination of input arguments. Please run 'nvidia-smi -h' for help." ; exit 6 ;;
  esac
done
if [ "$xml" = 1 ] && [ -n "$every" ]; then
  while cat "$here/.gpu/report.xml"; do sleep "$every"; done
  exit 1
fi
if [ "$xml" = 1 ]; then exec cat "$here/.gpu/report.xml"; fi
if [ -z "$columns" ]; then echo "simulated nvidia-smi: -q -x, -L or --query-gpu"; exit 6; fi
columns=$(echo "$columns" | tr ',' ' ')
line() {
  row=
  for c in $columns; do
    f="$1/$c"
    if [ ! -f "$f" ]; then echo "Field \"$c\" is not a valid field to query."; exit 2; fi
    v=$(cat "$f")
    if [ "$units" = 0 ]; then v=${v% MiB}; v=${v% %}; v=${v% W}; fi
    row="$row${row:+, }$v"
  done
  echo "$row"
}
if [ "$header" = 1 ]; then echo "$columns" | sed 's/ /, /g'; fi
for gpu in "$here"/.gpu/[0-9]*; do [ -d "$gpu" ] && line "$gpu"; done
exit 0
`

// writeSMI puts an nvidia-smi into dir which reports the given GPUs.
func writeSMI(dir string, g body.GPU) error {
	data := filepath.Join(dir, ".gpu")
	if err := os.RemoveAll(data); err != nil {
		return err
	}
	files := map[string]string{filepath.Join(data, "report.xml"): report(g)}
	var list strings.Builder
	for i := range g.Count {
		fmt.Fprintf(&list, "GPU %d: %s (UUID: %s)\n", i, g.Name, uuid(i))
		for column, value := range smiColumns(g, i) {
			files[filepath.Join(data, fmt.Sprintf("%03d", i), column)] = value
		}
	}
	files[filepath.Join(data, "list")] = list.String()
	for path, text := range files {
		if err := os.MkdirAll(filepath.Dir(path), 0o700); err != nil {
			return err
		}
		if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
			return err
		}
	}
	//nolint:gosec // A program must be executable.
	return os.WriteFile(filepath.Join(dir, "nvidia-smi"), []byte(smiScript), 0o700)
}

func uuid(i int) string { return fmt.Sprintf("GPU-00000000-0000-4000-8000-%012d", i) }

func smiColumns(g body.GPU, i int) map[string]string {
	mib := func(n int) string { return fmt.Sprintf("%d MiB", n) }
	return map[string]string{
		"index": fmt.Sprint(i), "name": g.Name, "uuid": uuid(i), "driver_version": g.Driver, "count": fmt.Sprint(g.Count),
		"memory.total": mib(g.MemoryMB), "memory.used": mib(1), "memory.free": mib(g.MemoryMB - 1),
		"compute_cap": g.ComputeCap, "utilization.gpu": "0 %", "utilization.memory": "0 %", "temperature.gpu": "41",
		"power.draw": "62.10 W", "power.limit": "450.00 W", "pstate": "P8", "mig.mode.current": "[N/A]",
		"pci.bus_id": busID(i), "ecc.errors.uncorrected.volatile.total": "[N/A]",
	}
}

func busID(i int) string { return fmt.Sprintf("00000000:%02X:00.0", i+1) }

// xmlLog is the part of the report that tools read, in nvidia-smi's names.
type xmlLog struct {
	XMLName  xml.Name `xml:"nvidia_smi_log"`
	Time     string   `xml:"timestamp"`
	Driver   string   `xml:"driver_version"`
	CUDA     string   `xml:"cuda_version"`
	Attached int      `xml:"attached_gpus"`
	GPUs     []xmlGPU `xml:"gpu"`
}

type xmlGPU struct {
	ID         string `xml:"id,attr"`
	Name       string `xml:"product_name"`
	MIG        string `xml:"mig_mode>current_mig"`
	UUID       string `xml:"uuid"`
	Minor      int    `xml:"minor_number"`
	Total      string `xml:"fb_memory_usage>total"`
	Used       string `xml:"fb_memory_usage>used"`
	Free       string `xml:"fb_memory_usage>free"`
	GPUUse     string `xml:"utilization>gpu_util"`
	MemUse     string `xml:"utilization>memory_util"`
	Temp       string `xml:"temperature>gpu_temp"`
	MemTemp    string `xml:"temperature>memory_temp"`
	Fan        string `xml:"fan_speed"`
	PowerCap   string `xml:"clocks_event_reasons>clocks_event_reason_sw_power_cap"`
	Thermal    string `xml:"clocks_event_reasons>clocks_event_reason_sw_thermal_slowdown"`
	Power      string `xml:"gpu_power_readings>power_draw"`
	PowerLimit string `xml:"gpu_power_readings>current_power_limit"`
	SMClock    string `xml:"clocks>sm_clock"`
	MemClock   string `xml:"clocks>mem_clock"`
}

func report(g body.GPU) string {
	log := xmlLog{Time: "Sat Aug  1 12:00:00 2026", Driver: g.Driver, CUDA: g.CUDA, Attached: g.Count}
	for i := range g.Count {
		c := smiColumns(g, i)
		log.GPUs = append(log.GPUs, xmlGPU{ID: busID(i), Name: g.Name, MIG: "N/A", UUID: uuid(i), Minor: i,
			Total: c["memory.total"], Used: c["memory.used"], Free: c["memory.free"], GPUUse: "0 %", MemUse: "0 %",
			Temp: "41 C", MemTemp: "N/A", Fan: "0 %", PowerCap: "Not Active", Thermal: "Not Active",
			Power: c["power.draw"], PowerLimit: c["power.limit"], SMClock: "210 MHz", MemClock: "405 MHz"})
	}
	out, err := xml.MarshalIndent(log, "", "\t")
	if err != nil {
		return "" // Strings and numbers are always XML.
	}
	return xml.Header + `<!DOCTYPE nvidia_smi_log SYSTEM "nvsmi_device_v12.dtd">` + "\n" + string(out) + "\n"
}
