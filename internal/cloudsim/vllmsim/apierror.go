package vllmsim

import (
	"fmt"
	"net/http"
)

// apiError is vLLM's error object. It is an error so that validation can
// return it.
type apiError struct {
	Message string  `json:"message"`
	Type    string  `json:"type"`
	Param   *string `json:"param"`
	Code    int     `json:"code"`
}

// Error returns the message.
func (e *apiError) Error() string { return e.Message }

func (e *apiError) body() map[string]*apiError { return map[string]*apiError{"error": e} }

func badRequest(param, format string, args ...any) *apiError {
	e := &apiError{Message: fmt.Sprintf(format, args...), Type: "BadRequestError", Code: http.StatusBadRequest}
	if param != "" {
		e.Param = &param
	}
	return e
}

func unknownModel(name string) *apiError {
	param := "model"
	return &apiError{Message: "The model `" + name + "` does not exist.", Type: "NotFoundError",
		Param: &param, Code: http.StatusNotFound}
}

func engineDead() *apiError {
	return &apiError{
		Message: "EngineCore encountered an issue. See stack trace (above) for the root cause.",
		Type:    "InternalServerError", Code: http.StatusInternalServerError,
	}
}

func internalError(message string) *apiError {
	return &apiError{Message: message, Type: "InternalServerError", Code: http.StatusInternalServerError}
}

func shuttingDown() *apiError {
	return &apiError{Message: "Server is shutting down", Type: "ServiceUnavailableError",
		Code: http.StatusServiceUnavailable}
}

func writeError(w http.ResponseWriter, e *apiError) { writeJSON(w, e.Code, e.body()) }
