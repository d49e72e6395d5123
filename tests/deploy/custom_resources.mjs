// Reads a list of custom resources in JSON from standard input; prints what their schemas object to, a line each.
import { readFileSync } from "node:fs";
import { BackendTLSPolicy } from "@kubernetes-models/gateway-api/gateway.networking.k8s.io/v1/BackendTLSPolicy";
import { GRPCRoute } from "@kubernetes-models/gateway-api/gateway.networking.k8s.io/v1/GRPCRoute";
import { ServiceMonitor } from "@kubernetes-models/prometheus-operator/monitoring.coreos.com/v1/ServiceMonitor";

const models = { BackendTLSPolicy, GRPCRoute, ServiceMonitor };
for (const object of JSON.parse(readFileSync(0, "utf-8"))) {
  const Model = models[object.kind];
  if (Model.apiVersion !== object.apiVersion) console.log(`${object.kind}: ${object.apiVersion} is not ${Model.apiVersion}`);
  try {
    new Model(object).validate();
  } catch (error) {
    console.log(`${object.kind}: ${error.message}`);
  }
}
