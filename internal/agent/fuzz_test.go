package agent

import (
	"bufio"
	"bytes"
	"encoding/base64"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"testing"
	"unicode/utf8"

	"github.com/munhq/gpuscale/internal/agentapi"
)

// FuzzDecodeBoot: whatever the boot data, an error or a value, and an error quotes none of it.
func FuzzDecodeBoot(f *testing.F) {
	for _, s := range []string{"", " ", "e30", "e30=", "bnVsbA==", "W10=", base64.StdEncoding.EncodeToString([]byte(`{"v":1,"key":"k","gpus":{"count":2}}`))} {
		f.Add(s)
	}
	f.Fuzz(func(t *testing.T, s string) {
		boot, err := DecodeBoot(s)
		if err == nil && boot.Version == 1 {
			_, _ = New(Config{Boot: boot, Runner: ProcessRunner{}}) // Refused or not, it comes back.
		}
		if err != nil && len(s) > 20 && strings.Contains(err.Error(), s) {
			t.Errorf("%q quotes the data", err)
		}
	})
}

// FuzzDesiredModels: from the body of PUT /models to the engine's command line, what the agent decides stays decided.
func FuzzDesiredModels(f *testing.F) {
	for _, s := range []string{
		`{"generation":1,"models":[{"name":"q","source":"s","args":["--seed","1"],"gpus":2,"gpuFraction":500}]}`,
		`{"generation":1,"models":[{"name":"q","source":"s","args":["--host","0.0.0.0","--api-k=x","--disable_log_stats","--max-num-seqs=8","-dp","2"]}]}`,
		`{"generation":1,"models":[{"name":"q","source":"s"}],"env":{"GPUSCALE_ENGINE_COMMAND":"x {args} {port}","GPUSCALE_MAX_IN_FLIGHT":"3","A":"b"}}`,
		`{"generation":1,"models":[{"name":"q","source":"s"}],"env":{"GPUSCALE_ENGINE_COMMAND":"[\"a b\",\"{memory}\"]","GPUSCALE_MAX_BODY_BYTES":"-1"}}`,
		`{"generation":-1}`, `[]`, `{"models":[{}]}`,
	} {
		f.Add([]byte(s))
	}
	f.Fuzz(func(t *testing.T, body []byte) {
		var d agentapi.DesiredModels
		if json.Unmarshal(body, &d) != nil || check(d) != nil {
			return
		}
		o, err := optionsOf(d.Env, nil)
		if err == nil && (o.maxBody < 1 || o.maxInFlight < 0) {
			t.Errorf("options are %+v", o)
		}
		if o.command == nil {
			o.command = DefaultCommand()
		}
		for key := range envFor(d.Env, []int{0}) {
			if strings.HasPrefix(key, "GPUSCALE_") {
				t.Errorf("engines see %s", key)
			}
		}
		for _, m := range d.Models {
			if n := o.mostInFlight(m.Args); n < 1 {
				t.Errorf("%d requests at once for %q", n, m.Args)
			}
			args, _ := passed(m.Args)
			for _, arg := range args {
				if name, long := strings.CutPrefix(flagOf(arg), "--"); long {
					if _, own := agentapi.OwnFlag(name); own {
						t.Errorf("%q passes as %q", m.Args, args)
					}
				}
			}
			command, _ := commandFor(o.command, m)
			want := []string{"--served-model-name", m.Name, "--host", "127.0.0.1", "--port", PortWord}
			if !foreign(o.command) && !slices.Equal(command[len(command)-len(want):], want) {
				t.Errorf("%q ends otherwise", command)
			}
		}
	})
}

// FuzzEngineLog: any bytes of a log end in whole lines of bounded length, one closed list of exits, and valid text.
func FuzzEngineLog(f *testing.F) {
	for _, s := range []string{
		"torch.OutOfMemoryError: CUDA out of memory.\n", "vllm serve: error: argument --x: no\r", "Loading safetensors checkpoint shards: 50% Completed |\r",
		"(EngineCore_DP0 pid=7) ERROR 11-20 12:00:00 [core.py:1] ValueError: bad\nRuntimeError: Engine core initialization failed. See root cause above.",
		"\x00\xff\xfe", strings.Repeat("x", 5000),
	} {
		f.Add([]byte(s), 1)
	}
	exits := []string{agentapi.ExitWeightsDenied, agentapi.ExitWeightsNotFound, agentapi.ExitOutOfMemory, agentapi.ExitBadArgument,
		agentapi.ExitNoEngine, agentapi.ExitCrashed}
	f.Fuzz(func(t *testing.T, log []byte, code int) {
		r := newRing(func(line string) { _, _ = progress(line) })
		r.blank(map[string]string{"HF_TOKEN": "hf_secret1"})
		for len(log) > 0 { // In pieces, as a pipe gives them.
			n := min(len(log), 7)
			_, _ = r.Write(log[:n])
			log = log[n:]
		}
		_, _ = r.Write([]byte("\n"))
		lines := r.since(0)
		for _, line := range lines {
			if len(line) > maxLine*3 || !utf8.ValidString(line) || strings.Contains(line, "hf_secret1") || strings.ContainsAny(line, "\r\n") {
				t.Errorf("a line is %q", line)
			}
		}
		exit, message := classify(Exit{Code: code}, lines)
		if !slices.Contains(exits, exit) || !utf8.ValidString(message) || len(message) > maxMessage+len("…") {
			t.Errorf("%s: %q", exit, message)
		}
		for _, line := range tailOf(lines) {
			if len(line) > tailWidth+len("…") {
				t.Errorf("a line of the tail has %d bytes", len(line))
			}
		}
	})
}

// FuzzModelOf: the model that is counted is the one that an engine reads, by another way of reading.
func FuzzModelOf(f *testing.F) {
	for _, s := range []string{`{"model":"q"}`, `{"Model":"q"}`, `{"model":"a","model":"b"}`, `{"model":7}`, `{"model":null}`, `{"x":{"model":"q"}}`,
		`[]`, ``, `{"model":"\u0071"}`, `{"model":"q","model":7}`, "{\"model\":\"\xff\"}"} {
		f.Add([]byte(s))
	}
	f.Fuzz(func(t *testing.T, body []byte) {
		got, err := modelOf(body)
		var fields map[string]any
		want := ""
		if json.Unmarshal(body, &fields) == nil {
			want, _ = fields["model"].(string)
		}
		if (err == nil) != (want != "") && len(want) <= maxModelName || err == nil && got != want {
			t.Errorf("%q: %q, %v; want %q", body, got, err, want)
		}
	})
}

// answers is an engine that answers every request with the same bytes.
type answers []byte

func (a answers) RoundTrip(r *http.Request) (*http.Response, error) {
	if r.Body != nil {
		_ = r.Body.Close()
	}
	return http.ReadResponse(bufio.NewReader(bytes.NewReader(a)), r)
}

type fakeEngine struct {
	Engine
	transport http.RoundTripper
}

func (e fakeEngine) Transport() http.RoundTripper { return e.transport }

// FuzzEngineAnswer: whatever an engine answers, the agent's own questions end in yes, no or an error, and a caller gets
// nothing that only the agent may say.
func FuzzEngineAnswer(f *testing.F) {
	for _, s := range []string{
		"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\n{}", "HTTP/1.1 200 OK\r\n\r\n{\"data\":[{\"id\":\"q\"}],\"choices\":[1]}",
		"HTTP/1.1 503 X\r\nGpuscale-Refused: full\r\nContent-Length: 0\r\n\r\n", "HTTP/1.1 101 Switching\r\nUpgrade: x\r\nConnection: upgrade\r\n\r\n",
		"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\nTrailer: Gpuscale-Refused\r\n\r\n1\r\nx\r\n0\r\nGpuscale-Refused: full\r\n\r\n",
		"HTTP/1.1 200 OK\r\n\r\nvllm:generation_tokens_total{a=\"b\"} 1\nvllm:kv_cache_usage_perc 0.5\n", "garbage", "",
		"HTTP/1.1 000 000\n\r\n0",
	} {
		f.Add([]byte(s))
	}
	a := &Agent{cfg: Config{Clock: RealClock()}, maxBody: defaultMaxBody}
	a.cfg.Settings = a.cfg.Settings.withDefaults()
	f.Fuzz(func(t *testing.T, raw []byte) {
		engine := fakeEngine{transport: answers(raw)}
		client := &http.Client{Transport: engine.transport, CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse }}
		for _, foreign := range []bool{false, true} {
			_ = listed(t.Context(), client, "q", foreign)
		}
		_ = warmUp(t.Context(), client, "q")
		u := &unit{agent: a}
		_ = u.lifeSigns(t.Context(), client)

		answer := httptest.NewRecorder()
		request := httptest.NewRequest(http.MethodPost, "/v1/completions", strings.NewReader("{}"))
		func() {
			defer func() {
				if problem := recover(); problem != nil && !errors.Is(problem.(error), http.ErrAbortHandler) {
					panic(problem)
				}
			}()
			newProxy(engine, slog.New(slog.DiscardHandler)).ServeHTTP(answer, request)
		}()
		result := answer.Result()
		_, _ = io.Copy(io.Discard, result.Body)
		if result.Header.Get(agentapi.HeaderRefused) != "" || result.Trailer.Get(agentapi.HeaderRefused) != "" {
			t.Errorf("an engine speaks for the agent: %q", raw)
		}
	})
}

// FuzzMetadata: whatever answers in the place of a metadata service, a question ends in a notice of a known kind, in none or
// in an error.
func FuzzMetadata(f *testing.F) {
	for _, s := range []string{
		"HTTP/1.1 200 OK\r\nMetadata-Flavor: Google\r\nEtag: 1\r\n\r\nTRUE", "HTTP/1.1 200 OK\r\nMetadata-Flavor: Google\r\n\r\nTERMINATE_ON_HOST_MAINTENANCE",
		"HTTP/1.1 200 OK\r\n\r\n{\"action\":\"stop\",\"time\":\"2027-09-19T18:29:47Z\"}", "HTTP/1.1 200 OK\r\n\r\n{\"action\":7,\"time\":\"soon\"}",
		"HTTP/1.1 200 OK\r\n\r\n{\"noticeTime\":\"2027-09-19T18:29:47Z\"}", "HTTP/1.1 401 Unauthorized\r\nContent-Length: 0\r\n\r\n",
		`HTTP/1.1 200 OK` + "\r\n\r\n" + `{"DocumentIncarnation":2,"Events":[{"EventType":"Preempt","EventStatus":"Scheduled","NotBefore":"Mon, 19 Sep 2027 18:29:47 GMT"}]}`,
		"HTTP/1.1 200 OK\r\n\r\nnull", "garbage", "",
	} {
		f.Add([]byte(s))
	}
	kinds := []string{agentapi.NoticeInterrupted, agentapi.NoticeMaintenance, agentapi.NoticeRebalance}
	f.Fuzz(func(t *testing.T, raw []byte) {
		client := metadataClient()
		client.Transport = answers(raw)
		m := metadata{base: "http://metadata", client: client}
		for _, s := range []noticeSource{&awsNotices{metadata: m}, &azureNotices{metadata: m},
			&gcpNotices{metadata: m, path: gcpPreempted}, &gcpNotices{metadata: m, path: gcpMaintenance}} {
			for range 2 { // The second question has what the first one learned.
				n, err := s.ask(t.Context())
				if err == nil && n != nil && (!slices.Contains(kinds, n.Kind) || !utf8.ValidString(n.Message) || len(n.Message) > maxMessage) {
					t.Errorf("%T: %+v", s, n)
				}
			}
		}
	})
}

// FuzzEndOfRental: an answer to the request for the end says that it may have been granted, or that it was not, and no
// error tells the key.
func FuzzEndOfRental(f *testing.F) {
	const key = "key-of-the-instance"
	for _, s := range []string{`{"success":true}`, `{"success":false,"error":"auth_error"}`, `{"success":"no","error":7}`, "<html>" + key, ""} {
		for _, code := range []int{200, 204, 301, 403, 404, 502} {
			f.Add(code, []byte(s))
		}
	}
	f.Fuzz(func(t *testing.T, code int, text []byte) {
		err := (&deleter{key: key}).meaning(code, text)
		if err == nil && code/100 != 2 && code != http.StatusNotFound {
			t.Errorf("%d %q is taken for granted", code, text)
		}
		if err != nil && strings.Contains(err.Error(), key) {
			t.Errorf("%v", err)
		}
	})
}

// FuzzInventory: what is read of a driver's report is whole, or nothing is.
func FuzzInventory(f *testing.F) {
	f.Add(fmt.Appendf(nil, smi, "NVIDIA L4", "N/A", 23034))
	f.Add([]byte("<nvidia_smi_log><gpu><fb_memory_usage><total>-1 MiB</total></fb_memory_usage></gpu></nvidia_smi_log>"))
	f.Add([]byte("NVIDIA-SMI has failed because it couldn't communicate with the NVIDIA driver."))
	f.Fuzz(func(t *testing.T, report []byte) {
		have, err := parseNvidiaSMI(report)
		if err != nil && (!errors.Is(err, ErrNoDriver) || len(have.GPUs) > 0) {
			t.Errorf("%+v, %v", have, err)
		}
		_ = mismatch(agentapi.GPUExpectation{Name: "L4", Count: len(have.GPUs), VRAMGB: 24}, have)
	})
}
