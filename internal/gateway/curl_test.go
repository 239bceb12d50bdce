package gateway_test

import (
	"bytes"
	"os/exec"
	"strings"
	"testing"
)

// curl runs the real program; -N shows bytes as they come.
func curl(t *testing.T, args ...string) []byte {
	t.Helper()
	path, err := exec.LookPath("curl")
	if err != nil {
		t.Skip("there is no curl here")
	}
	var out, errOut bytes.Buffer
	cmd := exec.CommandContext(t.Context(), path, append([]string{"-sS", "-N", "--noproxy", "*"}, args...)...)
	cmd.Stdout, cmd.Stderr = &out, &errOut
	if err := cmd.Run(); err != nil {
		t.Fatalf("curl: %v: %s", err, errOut.String())
	}
	return out.Bytes()
}

func TestCurlGetsWhatTheWorkerSent(t *testing.T) {
	w := newWorld(t, nil)
	a := w.add(nil)
	for _, c := range []struct{ path, body string }{
		{chatPath, chat(`,"stream":true,"max_tokens":30,"stream_options":{"include_usage":true}`)},
		{"/v1/completions", `{"model":"` + model + `","prompt":"x","stream":true,"max_tokens":30}`},
		{chatPath, chat(`,"max_tokens":30`)},
	} {
		before := len(a.answers())
		got := curl(t, w.url+c.path, "-H", "Content-Type: application/json", "-d", c.body)
		if want := a.answers()[before:]; string(got) != want || want == "" {
			t.Errorf("%s: curl got\n%q\nthe worker sent\n%q", c.path, got, want)
		}
	}
	head := string(curl(t, "-i", w.url+"/v1/models/none"))
	if !strings.HasPrefix(head, "HTTP/1.1 404 Not Found\r\n") || !strings.Contains(head, `"code":"model_not_found"`) {
		t.Errorf("%q", head)
	}
}
