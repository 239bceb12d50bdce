package vastai

import (
	"fmt"
	"sort"
	"strconv"

	"github.com/munhq/gpuscale/internal/cloudsim/market"
)

// instanceRow is an instance on the wire.
func (s *Server) instanceRow(in market.Instance) object {
	now := s.market.Clock().Now()
	o := in.Offer
	row := hardwareRow(o)
	delete(row, "gpu_total_ram")
	total := (in.GPURate + in.StorageRate).Dollars()
	for k, v := range (object{
		"id": integer(in.ID), "bundle_id": integer(o.Machine) * 10, "label": orNull(in.Label),
		"template_id": nil, "template_hash_id": nil, "template_name": nil,
		"image_uuid": in.Image, "image_args": append([]string{}, in.Command...), "image_runtype": in.Extra["runtype"],
		"extra_env": s.extraEnv(in), "onstart": orNull(in.Extra["onstart"]), "jupyter_token": "",
		"local_ipaddrs": "10.0.0.5 172.17.0.2 \n", "public_ipaddr": publicIP(in), "ports": s.ports(in),
		"ssh_host": "ssh4.vast.ai", "ssh_idx": "4", "ssh_port": 31001, "machine_dir_ssh_port": 21000,
		"direct_port_start": -1, "direct_port_end": -1, "start_date": unix(in.CreatedAt),
		"is_bid": in.Spot, "min_bid": o.MinBid.Dollars(), "dph_base": in.GPURate.Dollars(), "dph_total": total,
		"gpu_totalram": o.GPUMemoryMB * o.GPUs, "gpu_util": nil, "gpu_temp": nil, "cpu_util": 0.0, "mem_limit": nil,
		"mem_usage": nil, "vmem_usage": nil, "disk_space": in.DiskGB, "disk_util": -1.0, "disk_usage": -1.0,
		"storage_total_cost": in.StorageRate.Dollars(), "rentable": true, "uptime_mins": nil,
		"dlperf_per_dphtotal": tflops(o) / max(total, 1e-9), "flops_per_dphtotal": tflops(o) / max(total, 1e-9),
		"vram_costperhour": total / float64(max(1, o.GPUMemoryMB*o.GPUs)), "credit_balance": nil, "credit_discount": nil,
		"client_run_time": 1.1, "host_run_time": 2592000.0, "country_code": nil, "volume_info": []any{},
		"search": prices(in.GPURate, in.StorageRate), "instance": prices(in.GPURate, in.StorageRate),
	}) {
		row[k] = v
	}
	row["end_date"], row["duration"] = ends(o, now)
	s.status(row, in)
	return row
}

func orNull(s string) any {
	if s == "" {
		return nil
	}
	return s
}

// status fills the four words about the state and the message.
func (s *Server) status(row object, in market.Instance) {
	var actual any = string(in.State)
	current := "running"
	switch in.State {
	case market.Accepted:
		actual, current = nil, "unloaded"
	case market.Created, market.Loading:
		current = "unloaded"
	case market.Stopped:
		current = "stopped"
	case market.Running, market.Rebooting, market.Frozen, market.Exited, market.Unknown, market.Offline, market.Gone:
	}
	intended := "running"
	if in.Wanted == market.Stopped {
		intended = "stopped"
	}
	if in.Reclaimed {
		intended = s.opts.OutbidIntended
	}
	row["actual_status"], row["cur_state"], row["intended_status"] = actual, current, intended
	row["next_state"] = intended
	row["status_msg"] = orNull(message(in))
}

func message(in market.Instance) string {
	switch {
	case in.Message != "":
		return in.Message
	case in.Waiting:
		return "scheduling"
	case in.State == market.Running:
		return "success, running " + in.Image
	case in.State == market.Loading:
		return "Pulling from " + in.Image
	}
	return ""
}

// publicIP ends in a newline, which the vendor has never trimmed. Before the instance runs it is the machine's.
func publicIP(in market.Instance) string {
	if in.Host != "" {
		return in.Host + "\n"
	}
	return hostIP(in.Offer) + "\n"
}

// ports is null until the instance runs and its host has published them. Only the first leads anywhere.
func (s *Server) ports(in market.Instance) any {
	if in.HostPort == 0 || len(in.Ports) == 0 {
		return nil
	}
	out := object{}
	for _, p := range s.opts.AlsoExposed {
		out[fmt.Sprintf("%d/tcp", p)] = []object{{"HostIp": "0.0.0.0", "HostPort": "1"}}
	}
	for i, p := range in.Ports {
		host := in.HostPort
		if i > 0 {
			host = 1 // Refused at once, wherever the sim runs.
		}
		out[fmt.Sprintf("%d/tcp", p)] = []object{{"HostIp": "0.0.0.0", "HostPort": strconv.Itoa(host)}}
	}
	return out
}

func (s *Server) extraEnv(in market.Instance) [][]string {
	out := [][]string{}
	for k, v := range in.Env {
		out = append(out, []string{k, v})
	}
	sort.Slice(out, func(i, j int) bool { return out[i][0] < out[j][0] })
	if s.opts.HideFlags {
		return out
	}
	for _, p := range in.Ports {
		out = append(out, []string{fmt.Sprintf("-p %d:%d", p, p), "1"})
	}
	return out
}
