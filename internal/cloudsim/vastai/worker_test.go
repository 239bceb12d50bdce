package vastai_test

import (
	"fmt"
	"net"
	"net/http/httptest"
	"strings"
	"testing"

	"github.com/munhq/gpuscale/internal/agentapi"
	"github.com/munhq/gpuscale/internal/bootstrap"
	"github.com/munhq/gpuscale/internal/cloudsim/body/process"
	"github.com/munhq/gpuscale/internal/cloudsim/cloudsimtest"
	"github.com/munhq/gpuscale/internal/cloudsim/market"
	"github.com/munhq/gpuscale/internal/cloudsim/vastai"
)

func must[T any](v T, err error) T {
	if err != nil {
		panic(err)
	}
	return v
}

// A rented instance is a real agent at the address that the API shows: it finds the GPU that was offered, serves a
// model, and is gone with its engine when the instance is destroyed.
func TestRentedInstanceServesAModel(t *testing.T) {
	if testing.Short() {
		t.Skip("builds and runs the real agent")
	}
	ca, said := cloudsimtest.Boot(agentapi.GPUExpectation{Name: "RTX4090", Count: 1, VRAMGB: 24})
	data := must(bootstrap.BootData(bootstrap.Params{Boot: said}))

	m := market.New(market.Config{Provider: "vast.ai", Offers: []market.Offer{offer4090()}, Body: cloudsimtest.Processes(t)})
	defer m.Close()
	srv := httptest.NewServer(vastai.New(m, vastai.Options{Keys: []string{key}, LimitScale: -1, LogDelay: -1}))
	defer srv.Close()
	r := &rig{t: t, market: m, url: srv.URL, client: srv.Client()}

	id, _ := r.rent(with(order(), "env", object{"GPUSCALE_BOOT": data, "-p 9443:9443": "1"}))
	var endpoint string
	cloudsimtest.Until(t, "published", func() bool {
		in := r.show(id)
		published, ok := in["ports"].(object)
		if ok {
			endpoint = net.JoinHostPort(strings.TrimSpace(in["public_ipaddr"].(string)),
				objects(published["9443/tcp"])[0]["HostPort"].(string))
		}
		return ok
	})
	if g := cloudsimtest.Serves(t, ca, endpoint).GPUs[0]; g.Name != "NVIDIA GeForce RTX 4090" || g.MemoryMB != 24564 {
		t.Errorf("GPU %+v", g)
	}

	_, out := r.call("PUT", "/api/v0/instances/request_logs/"+id+"/", object{"tail": "50"})
	if _, logs := r.raw("", "GET", strings.TrimPrefix(fmt.Sprint(out["result_url"]), r.url), nil); len(logs) == 0 {
		t.Error("no logs")
	} else if strings.Contains(string(logs), "PRIVATE KEY") || strings.Contains(string(logs), data) {
		t.Error("the logs tell the boot data")
	}
	if status, _ := r.call("DELETE", "/api/v0/instances/"+id+"/", nil); status != 200 {
		t.Errorf("destroy: %d", status)
	}
	cloudsimtest.Silent(t, endpoint)
}

// A tenant without boot data gets what a container gets whose command fails.
func TestRentedInstanceWithoutBootDataExits(t *testing.T) {
	m := market.New(market.Config{Provider: "vast.ai", Offers: []market.Offer{offer4090()},
		Body: must(process.New(process.Options{Agent: "/bin/true", VLLM: "/bin/true", Root: t.TempDir()}))})
	defer m.Close()
	srv := httptest.NewServer(vastai.New(m, vastai.Options{Keys: []string{key}, LimitScale: -1}))
	defer srv.Close()
	r := &rig{t: t, market: m, url: srv.URL, client: srv.Client()}
	id, _ := r.rent(with(order(), "env", object{"-p 9443:9443": "1"}))
	cloudsimtest.Until(t, "exited", func() bool { return r.show(id)["actual_status"] == "exited" })
	if in := r.show(id); in["ports"] != nil || !strings.Contains(fmt.Sprint(in["status_msg"]), "GPUSCALE_BOOT") {
		t.Errorf("%v %v", in["ports"], in["status_msg"])
	}
}
