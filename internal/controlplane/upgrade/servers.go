package upgrade

import (
	"context"
	"encoding/json"
	"io"
	"net/http"
	"time"
)

const (
	// versionPatience is how long a server may take to tell its version.
	versionPatience = 5 * time.Second
	// maxVersion is how many bytes its answer may have.
	maxVersion = 64 << 10
)

// versionAt returns the version of the server at an address, or "" if it does not tell it.
func versionAt(ctx context.Context, client *http.Client, address string) string {
	ctx, cancel := context.WithTimeout(ctx, versionPatience)
	defer cancel()
	request, err := http.NewRequestWithContext(ctx, http.MethodGet, "https://"+address+"/version", nil)
	if err != nil {
		return ""
	}
	response, err := client.Do(request)
	if err != nil {
		return ""
	}
	defer response.Body.Close()
	var told struct {
		GitVersion string `json:"gitVersion"`
	}
	if response.StatusCode != http.StatusOK || json.NewDecoder(io.LimitReader(response.Body, maxVersion)).Decode(&told) != nil {
		return ""
	}
	return told.GitVersion
}
