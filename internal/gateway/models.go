package gateway

import (
	"net/http"

	"github.com/munhq/gpuscale/internal/gateway/registry"
)

// modelCard is OpenAI's, with warm, workers and stage added.
type modelCard struct {
	ID      string `json:"id"`
	Object  string `json:"object"`
	Created int64  `json:"created"`
	OwnedBy string `json:"owned_by"`
	// Warm tells whether a request would be answered now, Workers by how many; Stage is how far a model is that is not.
	Warm    bool   `json:"warm"`
	Workers int    `json:"workers"`
	Stage   string `json:"stage,omitempty"`
}

func cardOf(m registry.Model) modelCard {
	return modelCard{ID: m.Name, Object: "model", Created: m.FirstKnown.Unix(), OwnedBy: "gpuscale",
		Warm: m.Workers > 0, Workers: m.Workers, Stage: m.Stage}
}

func (g *Gateway) listModels(w http.ResponseWriter, _ *http.Request) {
	models := g.cfg.Registry.Models()
	if len(models) == 0 && !g.cfg.Registry.Synced() {
		write(w, starting())
		return
	}
	list := struct {
		Object string      `json:"object"`
		Data   []modelCard `json:"data"`
	}{Object: "list", Data: []modelCard{}}
	for _, m := range models {
		list.Data = append(list.Data, cardOf(m))
	}
	writeJSON(w, http.StatusOK, list)
}

func (g *Gateway) getModel(w http.ResponseWriter, r *http.Request) {
	m, problem := g.known(r.PathValue("model"))
	if problem != nil {
		write(w, problem)
		return
	}
	writeJSON(w, http.StatusOK, cardOf(m))
}

// known looks a model up, and tells a model that does not exist from a gateway that does not know yet.
func (g *Gateway) known(name string) (registry.Model, *apiError) {
	m, ok := g.cfg.Registry.Model(name)
	switch {
	case ok:
		return m, nil
	case !g.cfg.Registry.Synced():
		return m, starting()
	}
	return m, noSuchModel(name)
}
