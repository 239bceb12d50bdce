package operator_test

import (
	"fmt"
	"net"
	"net/http"
	"strings"
	"testing"
	"time"

	dto "github.com/prometheus/client_model/go"
	"github.com/prometheus/common/expfmt"
	pmodel "github.com/prometheus/common/model"
	corev1 "k8s.io/api/core/v1"

	"github.com/munhq/gpuscale/api/v1alpha1"
	"github.com/munhq/gpuscale/internal/cloudsim/market"
	simvast "github.com/munhq/gpuscale/internal/cloudsim/vastai"
	"github.com/munhq/gpuscale/internal/controller/workermetrics"
	"github.com/munhq/gpuscale/internal/operator"
)

// TestAWorkersMetricsAreReExposedWhileItIsReady sees a claim's engine and GPU on the controller's own listener, under the
// claim's labels, and nothing of it once the claim has ended.
func TestAWorkersMetricsAreReExposedWhileItIsReady(t *testing.T) {
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	addr := listener.Addr().String()
	_ = listener.Close()
	w := start(t, []market.Offer{offer("1001")}, func(w *world, _ *market.Config, _ *simvast.Options) {
		next := w.configure
		w.configure = func(c *operator.Config) {
			next(c)
			c.WorkerMetrics = workermetrics.Settings{Addr: addr, Interval: time.Second}
		}
	})
	pool := w.pool()
	pod := w.pod("acme/tiny")
	w.podSays(pod, corev1.ConditionTrue, v1alpha1.PodReasonServed)
	claim := w.claims()[0].Name
	for _, family := range []string{"gpuscale_worker_up", "gpuscale_worker_vllm_num_requests_running",
		"gpuscale_worker_vllm_time_to_first_token_seconds", "gpuscale_worker_gpu_memory_total_bytes"} {
		w.eventually(family, func() error {
			labels, err := seriesAt(addr, family, claim)
			if err != nil {
				return err
			}
			if labels["pool"] != pool.Name || labels["provider"] != "vast.ai" || labels["gpu_type"] != "RTX4090" {
				return fmt.Errorf("labels %v", labels)
			}
			if model, engines := labels["model"], strings.HasPrefix(family, workermetrics.VLLMPrefix); engines != (model == "acme/tiny") {
				return fmt.Errorf("labels %v", labels)
			}
			return nil
		})
	}
	w.remove(pod)
	w.eventually("its series are gone with it", func() error {
		if labels, err := seriesAt(addr, "gpuscale_worker_up", claim); err == nil {
			return fmt.Errorf("still %v", labels)
		}
		return nil
	})
}

// seriesAt are the labels of a claim's first series of a family.
func seriesAt(addr, family, claim string) (map[string]string, error) {
	response, err := http.Get("http://" + addr + "/metrics")
	if err != nil {
		return nil, err
	}
	defer response.Body.Close()
	parser := expfmt.NewTextParser(pmodel.LegacyValidation)
	families, err := parser.TextToMetricFamilies(response.Body)
	if err != nil {
		return nil, err
	}
	for _, m := range families[family].GetMetric() {
		if labels := labelsOf(m); labels["claim"] == claim {
			return labels, nil
		}
	}
	return nil, fmt.Errorf("no %s of %s among %d families", family, claim, len(families))
}

func labelsOf(m *dto.Metric) map[string]string {
	out := map[string]string{}
	for _, l := range m.Label {
		out[l.GetName()] = l.GetValue()
	}
	return out
}
