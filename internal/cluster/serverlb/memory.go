package serverlb

import (
	"encoding/json"
	"fmt"
	"os"

	"github.com/kedge-dev/kedge/internal/base/datadir"
)

// memory is the content of the file.
type memory struct {
	// Server is the server that the user named. Addresses learned from another one may be
	// those of another cluster.
	Server  string   `json:"server"`
	Servers []string `json:"servers"`
}

// recall returns the servers that were remembered, none if the file cannot be read: the
// user's server is still known.
func recall(file, server string) []string {
	text, err := os.ReadFile(file)
	if err != nil {
		return nil
	}
	var m memory
	if json.Unmarshal(text, &m) != nil || m.Server != server {
		return nil
	}
	return m.Servers
}

func remember(file, server string, servers []string) error {
	text, err := json.Marshal(memory{server, servers})
	if err != nil {
		return fmt.Errorf("remember servers: %w", err)
	}
	if err := datadir.WriteFile(file, append(text, '\n'), 0o600); err != nil {
		return fmt.Errorf("remember servers: %w", err)
	}
	return nil
}
