package main

import (
	"encoding/json"
	"net/http"
)

// review is the part of AdmissionReview (admission.k8s.io/v1) that is needed.
type review struct {
	APIVersion string            `json:"apiVersion"`
	Kind       string            `json:"kind"`
	Request    *admissionRequest `json:"request,omitempty"`
	Response   *admissionAnswer  `json:"response,omitempty"`
}

type admissionRequest struct {
	UID    string `json:"uid"`
	Object struct {
		Metadata struct {
			Labels map[string]string `json:"labels"`
		} `json:"metadata"`
	} `json:"object"`
}

type admissionAnswer struct {
	UID       string  `json:"uid"`
	Allowed   bool    `json:"allowed"`
	Status    *status `json:"status,omitempty"`
	Patch     []byte  `json:"patch,omitempty"`
	PatchType string  `json:"patchType,omitempty"`
}

type status struct {
	Message string `json:"message"`
}

func webhookHandler() http.Handler {
	mux := http.NewServeMux()
	mux.HandleFunc("/validate", admission(func(request *admissionRequest, answer *admissionAnswer) {
		if request.Object.Metadata.Labels["refuse"] == "yes" {
			answer.Allowed = false
			answer.Status = &status{"the webhook refuses what is labelled refuse=yes"}
		}
	}))
	mux.HandleFunc("/mutate", admission(func(request *admissionRequest, answer *admissionAnswer) {
		patch := `[{"op":"add","path":"/metadata/labels/mutated","value":"yes"}]`
		if request.Object.Metadata.Labels == nil {
			patch = `[{"op":"add","path":"/metadata/labels","value":{"mutated":"yes"}}]`
		}
		answer.Patch, answer.PatchType = []byte(patch), "JSONPatch"
	}))
	return mux
}

func admission(decide func(*admissionRequest, *admissionAnswer)) http.HandlerFunc {
	return func(w http.ResponseWriter, r *http.Request) {
		var asked review
		if err := json.NewDecoder(r.Body).Decode(&asked); err != nil || asked.Request == nil {
			http.Error(w, "not an AdmissionReview", http.StatusBadRequest)
			return
		}
		answer := &admissionAnswer{UID: asked.Request.UID, Allowed: true}
		decide(asked.Request, answer)
		writeJSON(w, review{APIVersion: asked.APIVersion, Kind: asked.Kind, Response: answer})
	}
}

func writeJSON(w http.ResponseWriter, value any) {
	w.Header().Set("Content-Type", "application/json")
	_ = json.NewEncoder(w).Encode(value)
}
