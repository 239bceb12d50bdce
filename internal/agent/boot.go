package agent

import (
	"encoding/base64"
	"encoding/json"
	"errors"
	"fmt"
	"strings"

	"github.com/munhq/gpuscale/internal/agentapi"
)

// DecodeBoot reads boot data as package bootstrap writes them. Its errors quote nothing, since boot data hold a key.
func DecodeBoot(text string) (agentapi.Boot, error) {
	text = strings.TrimSpace(text)
	switch {
	case text == "":
		return agentapi.Boot{}, errors.New("empty")
	case len(text) > agentapi.MaxBootBytes:
		return agentapi.Boot{}, fmt.Errorf("%d bytes, at most %d are taken", len(text), agentapi.MaxBootBytes)
	}
	raw, err := base64.StdEncoding.DecodeString(text)
	if err != nil {
		return agentapi.Boot{}, errors.New("not base64")
	}
	var boot agentapi.Boot
	if json.Unmarshal(raw, &boot) != nil {
		return agentapi.Boot{}, errors.New("not base64 of the JSON that is expected")
	}
	return boot, nil
}
