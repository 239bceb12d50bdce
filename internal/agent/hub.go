package agent

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"strings"
	"time"

	"github.com/munhq/gpuscale/internal/agentapi"
)

const (
	hubTimeout = 20 * time.Second
	// maxHubAnswer bounds what is read of the Hub's list of a repository's files.
	maxHubAnswer = 8 << 20
	defaultHub   = "https://huggingface.co"
)

var errOffline = errors.New("the Hub is not asked (HF_HUB_OFFLINE)")

// weightsSize asks the Hub how many bytes an engine will download for a model: GET /api/models/<repository>?blobs=true
// lists its files with their sizes. Weights are the .safetensors files at its top, else the .bin ones, as vLLM chooses.
// The Hub's address, token and revision are those that the engine has.
func weightsSize(ctx context.Context, m agentapi.DesiredModel, env func(string) string) (int64, error) {
	if offline := env("HF_HUB_OFFLINE"); offline != "" && offline != "0" {
		return 0, errOffline
	}
	ctx, cancel := context.WithTimeout(ctx, hubTimeout)
	defer cancel()
	request, err := http.NewRequestWithContext(ctx, http.MethodGet, hubURL(m, env("HF_ENDPOINT")), nil)
	if err != nil {
		return 0, errors.New("the Hub's address cannot be read") // The error would quote it.
	}
	if token := env("HF_TOKEN"); token != "" {
		request.Header.Set("Authorization", "Bearer "+token)
	}
	response, err := http.DefaultClient.Do(request)
	if quoting := (*url.Error)(nil); errors.As(err, &quoting) {
		err = quoting.Err // The rest is the address, as above.
	}
	if err != nil {
		return 0, err
	}
	defer func() { _ = response.Body.Close() }() // What was read decides.
	if response.StatusCode != http.StatusOK {
		return 0, fmt.Errorf("the Hub answers %s", response.Status)
	}
	body, err := io.ReadAll(io.LimitReader(response.Body, maxHubAnswer))
	if err != nil {
		return 0, err
	}
	return sizeOf(body)
}

func hubURL(m agentapi.DesiredModel, endpoint string) string {
	if endpoint == "" {
		endpoint = defaultHub
	}
	at := strings.TrimSuffix(endpoint, "/") + "/api/models/" + m.Source
	if revision := flagValue(m.Args, "--revision"); revision != "" {
		at += "/revision/" + url.PathEscape(revision)
	}
	return at + "?blobs=true"
}

// sizeOf reads the Hub's answer.
func sizeOf(body []byte) (int64, error) {
	var repository struct {
		Siblings []struct {
			Name string `json:"rfilename"`
			Size int64  `json:"size"`
		} `json:"siblings"`
	}
	if err := json.Unmarshal(body, &repository); err != nil {
		return 0, fmt.Errorf("the Hub's answer: %w", err)
	}
	for _, suffix := range []string{".safetensors", ".bin"} {
		var total int64
		for _, f := range repository.Siblings {
			if strings.HasSuffix(f.Name, suffix) && !strings.Contains(f.Name, "/") && f.Size > 0 {
				total += f.Size
			}
		}
		if total > 0 {
			return total, nil
		}
	}
	return 0, errors.New("the Hub lists no weights")
}
