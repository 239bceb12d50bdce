package vllmsim

import (
	"encoding/base64"
	"encoding/binary"
	"fmt"
	"math"
	"net/http"
	"strings"
)

type embedding struct {
	Index     int    `json:"index"`
	Object    string `json:"object"`
	Embedding any    `json:"embedding"`
}

func (s *Server) embeddings(w http.ResponseWriter, r *http.Request) {
	if bad := s.refuse(); bad != nil {
		writeError(w, bad)
		return
	}
	p, bad := decode(r)
	if bad != nil {
		writeError(w, bad)
		return
	}
	model, inputs, bad := s.embeddingInput(p)
	if bad != nil {
		writeError(w, bad)
		return
	}
	ordinal := s.served.Add(1)
	if s.failing(FailUnhealthy, ordinal) {
		writeError(w, engineDead())
		return
	}
	tokens := 0
	for _, input := range inputs {
		tokens += len(tokenSplit(input))
	}
	if bad := s.embed(r, ordinal, tokens); bad != nil { //nolint:contextcheck // r brings its context: see request.
		writeError(w, bad)
		return
	}
	seq := newSequence(model, s.started.String(), fmt.Sprint(ordinal))
	writeJSON(w, http.StatusOK, map[string]any{
		"id": fmt.Sprintf("embd-%016x%016x", seq.next(), seq.next()), "object": "list", "created": s.cfg.Clock.Now().Unix(),
		"model": model, "data": s.vectors(p, inputs), "usage": usage{PromptTokens: tokens, TotalTokens: tokens},
	})
}

func (s *Server) vectors(p params, inputs []string) []embedding {
	size := s.cfg.EmbeddingSize
	if p.Dimensions != nil {
		size = *p.Dimensions
	}
	data := make([]embedding, len(inputs))
	for i, input := range inputs {
		data[i] = embedding{Index: i, Object: "embedding", Embedding: encodeVector(vector(input, size), p.EncodingFormat)}
	}
	return data
}

func (s *Server) embeddingInput(p params) (model string, inputs []string, bad *apiError) {
	model, known := s.modelName(p.Model)
	if !known {
		return "", nil, unknownModel(p.Model)
	}
	if !s.cfg.Pooling {
		return "", nil, badRequest("", "The model does not support Embeddings API")
	}
	if p.Dimensions != nil && (*p.Dimensions < 1 || *p.Dimensions > s.cfg.EmbeddingSize) {
		return "", nil, badRequest("dimensions", "dimensions must be between 1 and %d, got %d.", s.cfg.EmbeddingSize, *p.Dimensions)
	}
	inputs, bad = prompts(p.Input, "input")
	if bad != nil {
		return "", nil, bad
	}
	for _, input := range inputs {
		if tokens := len(tokenSplit(input)); tokens > s.cfg.MaxModelLen {
			return "", nil, badRequest("input_tokens", "This model's maximum context length is %d tokens. However, you requested %d tokens in the input for embedding generation. Please reduce the length of the input.",
				s.cfg.MaxModelLen, tokens)
		}
	}
	return model, inputs, nil
}

// embed takes a request through the engine; it panics with
// http.ErrAbortHandler when the request is aborted.
func (s *Server) embed(r *http.Request, ordinal int64, tokens int) *apiError {
	ctx, release := s.request(r)
	defer release()
	g := &generation{server: s, ordinal: ordinal, promptTokens: tokens, answers: []answer{{reason: "stop"}}}
	j, err := g.run(ctx, func(int) error { return nil })
	if err == nil {
		j.finish(g.reason())
		return nil
	}
	if dead, _ := s.deadSince(); dead {
		return engineDead()
	}
	panic(http.ErrAbortHandler)
}

// vector is a unit vector that depends on text only.
func vector(text string, size int) []float32 {
	seq := newSequence(text)
	raw := make([]float64, size)
	var square float64
	for i := range raw {
		raw[i] = float64(int64(seq.next())) / math.MaxInt64
		square += raw[i] * raw[i]
	}
	unit := make([]float32, size)
	for i := range raw {
		unit[i] = float32(raw[i] / math.Sqrt(square))
	}
	return unit
}

func encodeVector(values []float32, format string) any {
	if format != "base64" {
		return values
	}
	raw := make([]byte, 0, 4*len(values))
	for _, value := range values {
		raw = binary.LittleEndian.AppendUint32(raw, math.Float32bits(value))
	}
	return base64.StdEncoding.EncodeToString(raw)
}

func (s *Server) tokenize(w http.ResponseWriter, r *http.Request) {
	p, bad := decode(r)
	if bad != nil {
		writeError(w, bad)
		return
	}
	if _, known := s.modelName(p.Model); !known {
		writeError(w, unknownModel(p.Model))
		return
	}
	var text string
	if len(p.Messages) > 0 {
		text, _, bad = p.chatPrompt()
	} else {
		var list []string
		list, bad = prompts(p.Prompt, "prompt")
		text = strings.Join(list, " ")
	}
	if bad != nil {
		writeError(w, bad)
		return
	}
	ids := []int{}
	for _, token := range tokenSplit(text) {
		ids = append(ids, tokenID(token))
	}
	writeJSON(w, http.StatusOK, map[string]any{
		"count": len(ids), "max_model_len": s.cfg.MaxModelLen, "tokens": ids, "token_strs": nil,
	})
}
