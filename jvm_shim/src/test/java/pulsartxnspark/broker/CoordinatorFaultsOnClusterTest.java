package pulsartxnspark.broker;

import pulsartxnspark.store.OnCluster;

@OnCluster
class CoordinatorFaultsOnClusterTest extends CoordinatorFaultsTest {}
