package agent

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"time"

	"github.com/munhq/gpuscale/internal/agentapi"
)

func TestADownloadIsToldInBytesRateAndPercent(t *testing.T) {
	at := func(seconds int) time.Time { return time.Unix(int64(seconds), 0) }
	d := &download{total: 15_000_000_000}
	d.saw(at(0), 500_000_000, true) // left from before
	if d.info() != nil {
		t.Error("nothing came yet")
	}
	d.saw(at(10), 1_900_000_000, true)
	if got := d.String(); got != "1.9 of 15.0 GB (12 %), 140 MB/s" {
		t.Error(got)
	}
	// What was long ago says nothing about the rate.
	for s := 20; s <= 60; s += 10 {
		d.saw(at(s), 1_900_000_000, true)
	}
	if got := d.String(); got != "1.9 of 15.0 GB (12 %)" || !d.grown.Equal(at(10)) {
		t.Error(got, d.grown)
	}
	d.saw(at(70), 15_100_000_000, false) // the tokenizer is in the folder as well
	if got := *d.info(); !strings.HasPrefix(d.String(), "15.0 of 15.0 GB (99 %)") || got.Bytes != 15_100_000_000 {
		t.Error(d.String(), got)
	}
	unknown := &download{}
	unknown.saw(at(0), 0, false)
	unknown.saw(at(2), 100_000_000, true)
	if got := unknown.String(); got != "0.1 GB, 50 MB/s" {
		t.Error(got)
	}
}

func TestBytesThatComeAreNoReasonToGiveUp(t *testing.T) {
	began := time.Unix(0, 0)
	settings := Settings{LoadTimeout: 30 * time.Minute, DownloadStall: 5 * time.Minute}
	for name, c := range map[string]struct {
		state    string
		seconds  int
		download download
		due      time.Duration
		why      error
	}{
		"nothing came":   {agentapi.StateDownloading, 0, download{}, 30 * time.Minute, errLate},
		"bytes come":     {agentapi.StateDownloading, 0, download{grown: began.Add(time.Hour), partial: true}, 65 * time.Minute, errStalled},
		"all is there":   {agentapi.StateDownloading, 0, download{grown: began.Add(time.Hour)}, 90 * time.Minute, errLate},
		"it loads":       {agentapi.StateLoading, 0, download{grown: began.Add(time.Hour), partial: true}, 90 * time.Minute, errLate},
		"the model says": {agentapi.StateDownloading, 60, download{grown: began.Add(time.Hour), partial: true}, time.Minute, errLate},
	} {
		u := &unit{agent: &Agent{cfg: Config{Settings: settings}}, state: c.state, download: &c.download,
			spec: agentapi.DesiredModel{LoadTimeoutSeconds: c.seconds}}
		due, why := u.due(began)
		if got := due.Sub(began); got != c.due || !errors.Is(why, c.why) {
			t.Errorf("%s: %s, %v", name, got, why)
		}
	}
}

func TestWhereWeightsLand(t *testing.T) {
	for _, c := range []struct {
		source string
		args   []string
		env    map[string]string
		want   string
	}{
		{"acme/tiny", nil, map[string]string{"HOME": "/root"}, "/root/.cache/huggingface/hub/models--acme--tiny/blobs"},
		{"gpt2", nil, map[string]string{"HOME": "/root", "XDG_CACHE_HOME": "/c"}, "/c/huggingface/hub/models--gpt2/blobs"},
		{"acme/tiny", nil, map[string]string{"HOME": "/root", "HF_HOME": "/hf"}, "/hf/hub/models--acme--tiny/blobs"},
		{"acme/tiny", nil, map[string]string{"HF_HOME": "/hf", "HF_HUB_CACHE": "/hub"}, "/hub/models--acme--tiny/blobs"},
		{"acme/tiny", []string{"--download-dir", "/d"}, map[string]string{"HF_HOME": "/hf"}, "/d/models--acme--tiny/blobs"},
		{"acme/tiny", []string{"--download_dir=/d"}, nil, "/d/models--acme--tiny/blobs"},
		{"/models/tiny", nil, map[string]string{"HOME": "/root"}, ""},
		{"./tiny", nil, map[string]string{"HOME": "/root"}, ""},
		{"s3://bucket/tiny", nil, map[string]string{"HOME": "/root"}, ""},
		{"a/b/c", nil, map[string]string{"HOME": "/root"}, ""},
		{"acme/tiny", nil, nil, ""},
	} {
		m := agentapi.DesiredModel{Source: c.source, Args: c.args}
		if got := weightsDir(m, func(k string) string { return c.env[k] }); got != c.want {
			t.Errorf("%s %v %v: %s, want %s", c.source, c.args, c.env, got, c.want)
		}
	}
}

func TestTheHubIsAskedAsTheEngineWould(t *testing.T) {
	hub := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.Header.Get("Authorization") != "Bearer hf_token" || r.URL.Query().Get("blobs") != "true" {
			w.WriteHeader(http.StatusUnauthorized)
			return
		}
		switch r.URL.EscapedPath() {
		case "/api/models/acme/tiny":
			_, _ = fmt.Fprint(w, `{"siblings":[{"rfilename":"a-1.safetensors","size":70},{"rfilename":"a-2.safetensors","size":30},
				{"rfilename":"original/a.safetensors","size":900},{"rfilename":"pytorch_model.bin","size":900},{"rfilename":"README.md"}]}`)
		case "/api/models/acme/tiny/revision/refs%2Fpr%2F1":
			_, _ = fmt.Fprint(w, `{"siblings":[{"rfilename":"pytorch_model.bin","size":50}]}`)
		case "/api/models/acme/empty":
			_, _ = fmt.Fprint(w, `{"siblings":[{"rfilename":"README.md","size":50}]}`)
		case "/api/models/acme/garbage":
			_, _ = fmt.Fprint(w, `<html>`)
		default:
			http.NotFound(w, r)
		}
	}))
	defer hub.Close()
	defer http.DefaultClient.CloseIdleConnections()
	env := map[string]string{"HF_ENDPOINT": hub.URL + "/", "HF_TOKEN": "hf_token"}
	ask := func(source string, args ...string) (int64, error) {
		return weightsSize(context.Background(), agentapi.DesiredModel{Source: source, Args: args}, func(k string) string { return env[k] })
	}
	if n, err := ask("acme/tiny"); n != 100 || err != nil {
		t.Error(n, err)
	}
	if n, err := ask("acme/tiny", "--revision", "refs/pr/1"); n != 50 || err != nil {
		t.Error(n, err)
	}
	for source, says := range map[string]string{"acme/empty": "no weights", "acme/garbage": "answer", "acme/none": "404"} {
		if n, err := ask(source); n != 0 || err == nil || !strings.Contains(err.Error(), says) {
			t.Errorf("%s: %d, %v", source, n, err)
		}
	}
	env["HF_HUB_OFFLINE"] = "1"
	if _, err := ask("acme/tiny"); !errors.Is(err, errOffline) {
		t.Error(err)
	}
}

func FuzzSizeOf(f *testing.F) {
	f.Add([]byte(`{"siblings":[{"rfilename":"a.safetensors","size":70}]}`))
	f.Add([]byte(`{"siblings":[{"rfilename":"a.bin","size":-1},{"size":9223372036854775807}]}`))
	f.Fuzz(func(t *testing.T, body []byte) {
		if n, err := sizeOf(body); err == nil && n <= 0 {
			t.Errorf("%d bytes without an error", n)
		}
	})
}
